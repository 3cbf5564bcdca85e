"""The checks across entries of a spec: stages against slots, values against stages, sums against limits.

Goes through a spec whose format has been checked, and notes every problem that it can judge. What is missing
or broken already is not judged again: a check whose facts are not all there is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from generator.catalog import PROBLEM_FACTS, Catalog
from generator.draft import Demands, ModuleDraft, VariantDraft
from generator.errors import UNTESTED, KeyPath, Problem, key_path, listed, nearest_name, quoted
from generator.layout import (
    MAX_TRANSACTION_BYTES,
    StagePlan,
    build_stage,
    lay_out,
    settings_that_fit,
    shared_bytes,
    shared_sum,
)
from generator.occupancy import (
    CTA_THREADS,
    RESERVED_BYTES,
    SHARED_BYTES,
    SHARED_UNIT,
    allocated_bytes,
    by_shared_memory,
)
from generator.spec import MAX_SEQ_LEN, SpecDocument
from stages.contract import MAX_SHARED_BYTES


def compose(spec: SpecDocument, catalog: Catalog) -> tuple[list[ModuleDraft], list[Problem]]:
    """The modules of `spec`, and all problems, those of its format included."""
    return _Composer(spec, catalog).modules()


class _Composer:
    def __init__(self, spec: SpecDocument, catalog: Catalog) -> None:
        self.spec = spec
        self.catalog = catalog
        self.problems = list(spec.problems)

    def report(self, path: KeyPath, message: str, **details: Any) -> None:
        self.problems.append(self.spec.document.problem(path, message, **details))

    def modules(self) -> tuple[list[ModuleDraft], list[Problem]]:
        drafts = [self.module(name, data) for name, data in self.spec.data.get("modules", {}).items()]
        kernels: dict[str, KeyPath] = {}
        for variant in (variant for module in drafts for variant in module.variants):
            _, module, _, name = variant.path
            first = kernels.setdefault(f"{module}_{name}", variant.path)
            if first != variant.path:
                clash = f"its kernel {module}_{name} is called like that of {key_path(first)}"
                self.report(variant.path, clash, of_key=True)
        return drafts, self.problems

    def module(self, name: str, data: Mapping[str, Any]) -> ModuleDraft:
        path: KeyPath = ("modules", name)
        if name in self.catalog.taken_names:
            taken = f"{quoted(name)} cannot name a module: generated code uses that name itself"
            self.report(path, taken, of_key=True)
        problem = {fact: data["problem"][fact] for fact in PROBLEM_FACTS if fact in data.get("problem", {})}
        demands = {fact: Demands((*path, "problem", fact), value) for fact, value in problem.items()}
        variants = [
            self.variant(VariantDraft(variant, (*path, "variants", variant), entry), demands)
            for variant, entry in data.get("variants", {}).items()
        ]
        self.problems += [demand.problem(self.spec) for demand in demands.values() if not demand.met]
        self.one_function(variants)
        return ModuleDraft(name, problem, variants)

    def one_function(self, variants: list[VariantDraft]) -> None:
        """The variants of a module compute one function: a deployment may get any that serves it."""
        for slot in (slot.name for slot in self.catalog.slots.values() if slot.decides_result):
            known = [draft for draft in variants if slot in draft.entries]
            for draft in known[1:]:
                first = known[0]
                if draft.computes(slot) == first.computes(slot):
                    continue
                path = (*draft.path, "stages", slot)
                at = (*path, "stage") if isinstance(draft.data["stages"][slot], dict) else path
                names = [f"variant {d.name!r} with {d.entries[slot][0].name!r}" for d in (draft, first)]
                wrong = (
                    f"{names[0]} does not compute what {names[1]} does; the variants of a module compute one "
                    f"function, so put {draft.name!r} into a module of its own"
                )
                self.report(at, wrong)

    def variant(self, draft: VariantDraft, problem: dict[str, Demands]) -> VariantDraft:
        self.choose_skeleton(draft)
        self.choose_stages(draft)
        launch = dict(self.launch(draft))
        requirements = [(entry.label, entry.contract.requires) for entry, _ in draft.entries.values()]
        if draft.skeleton:
            requirements.append((f"skeleton {draft.skeleton.name}", draft.skeleton.requires))
        for label, requires in requirements:
            for fact, allowed in requires.items():
                demand = launch.get(fact) or problem.get(fact)
                if demand:
                    demand.stages[label] = allowed
        self.problems += [demand.problem(self.spec) for demand in launch.values() if not demand.met]
        draft.facts = {name: demand.value for name, demand in (problem | launch).items() if demand.met}
        if draft.skeleton:
            draft.facts |= draft.skeleton.facts
        self.serves(draft)
        self.rules(draft)
        self.build(draft)
        return draft

    def choose_skeleton(self, draft: VariantDraft) -> None:
        name = draft.data.get("skeleton")
        if name is None:
            return
        draft.skeleton = self.catalog.skeletons.get(name)
        if draft.skeleton is None:
            known = tuple(self.catalog.skeletons)
            self.report(
                (*draft.path, "skeleton"),
                f"unknown skeleton {quoted(name)}",
                allowed=known,
                nearest=nearest_name(name, known),
            )

    def choose_stages(self, draft: VariantDraft) -> None:
        path = (*draft.path, "stages")
        given = draft.data.get("stages", {})
        slots = draft.skeleton.slots if draft.skeleton else tuple(self.catalog.slots)
        for slot, use in given.items():
            if slot not in slots:
                of = f"skeleton {draft.skeleton.name!r}" if draft.skeleton else "any skeleton"
                self.report(
                    (*path, slot),
                    f"{quoted(slot)} is no slot of {of}",
                    of_key=True,
                    allowed=slots,
                    nearest=nearest_name(slot, slots),
                )
                continue
            name = use.get("stage") if isinstance(use, dict) else use
            if name is not None:
                self.choose_stage(draft, slot, name, use if isinstance(use, dict) else {})
        for slot in draft.skeleton.slots if draft.skeleton else ():
            if slot not in given and not self.spec.is_broken((*path, slot)):
                self.report(path, f"no stage fills the slot {slot!r}", of_key=True, allowed=self.names(slot))
        draft.entries = {slot: draft.entries[slot] for slot in slots if slot in draft.entries}

    def names(self, slot: str) -> tuple[str, ...]:
        """The stages that may fill a slot."""
        return tuple(self.catalog.by_slot[slot])

    def choose_stage(self, draft: VariantDraft, slot: str, name: str, use: Mapping[str, Any]) -> None:
        path = (*draft.path, "stages", slot)
        at = (*path, "stage") if use else path
        entry = self.catalog.by_slot[slot].get(name)
        if entry is None:
            names = self.names(slot)
            others = self.catalog.slots_of(name)
            if others:
                wrong = f"{name!r} is a stage of the slot {' and '.join(map(repr, others))}, not of {slot!r}"
                self.report(at, wrong, allowed=names)
            else:
                near = nearest_name(name, names)
                self.report(at, f"unknown stage {quoted(name)}", allowed=names, nearest=near)
            return
        known = {parameter.name: parameter for parameter in entry.contract.parameters}
        values = {name: parameter.default for name, parameter in known.items()}
        sound = not any(self.spec.is_broken((*path, name)) for name in known)
        for key in use:
            if key == "stage":
                continue
            if key not in known:
                near = nearest_name(key, tuple(known))
                wrong = f"stage {name!r} has no parameter {quoted(key)}" + (
                    "" if known else ", nor any other"
                )
                self.report((*path, key), wrong, of_key=True, allowed=tuple(known), nearest=near)
            elif use[key] not in known[key].allowed:
                sound = False
                allowed = listed(known[key].allowed)
                self.report((*path, key), f"{key} {use[key]} is not allowed ({UNTESTED})", allowed=allowed)
            else:
                values[key] = use[key]
        if sound:
            draft.entries[slot] = (entry, values)

    def launch(self, draft: VariantDraft) -> Iterator[tuple[str, Demands]]:
        """The facts that the launch gives, and what they have to be according to the skeleton."""
        if draft.skeleton is None:
            return
        path = (*draft.path, "launch")
        given = draft.data.get("launch", {})
        known = {field.name: field for field in draft.skeleton.launch}
        for key in given:
            if key not in known:
                wrong = f"skeleton {draft.skeleton.name!r} has no launch field {quoted(key)}"
                near = nearest_name(key, tuple(known))
                self.report((*path, key), wrong, of_key=True, allowed=tuple(known), nearest=near)
        for name, launch_field in known.items():
            at = (*path, name)
            value = given.get(name, launch_field.default)
            if self.spec.is_broken(at):
                continue
            if value is None:
                wrong = f"the launch field {name!r} ({launch_field.help}) is missing"
                self.report(path, wrong, of_key=True, allowed=listed(launch_field.allowed))
            else:
                yield name, Demands(at, value, launch_field)

    def serves(self, draft: VariantDraft) -> None:
        skeleton, path = draft.skeleton, (*draft.path, "serves")
        serves = draft.data.get("serves", {})
        draft.windows = serves.get("window", False)
        if "max_seq_len" in serves:
            draft.facts["max_seq_len"] = serves["max_seq_len"]
        elif skeleton and skeleton.bounded and not self.spec.is_broken((*path, "max_seq_len")):
            wrong = f"max_seq_len is missing: skeleton {skeleton.name!r} serves contexts up to a fixed length"
            self.report(path, wrong, of_key=True, allowed=(f"1 to {MAX_SEQ_LEN}",))
        if draft.windows and skeleton and not skeleton.windows:
            wrong = f"skeleton {skeleton.name!r} serves no sliding window"
            self.report((*path, "window"), wrong, found="the boolean true", allowed=("false",))

    def rules(self, draft: VariantDraft) -> None:
        for rule in draft.skeleton.rules if draft.skeleton else ():
            if all(fact in draft.facts for fact in rule.facts):
                wrong = rule.broken(draft.facts)
                if wrong:
                    self.report(self.fact_path(draft, rule.facts[0]), wrong)
        if "warps" in draft.facts and draft.threads > CTA_THREADS:
            warps, threads = draft.facts["warps"], draft.threads
            wrong = f"{warps} warps * 32 = {threads} threads; a CTA has at most {CTA_THREADS}"
            self.report(self.fact_path(draft, "warps"), wrong)

    def fact_path(self, draft: VariantDraft, fact: str) -> KeyPath:
        """Where the spec sets a fact."""
        if fact in PROBLEM_FACTS:
            return (*draft.path[:2], "problem", fact)
        return (*draft.path, "serves" if fact == "max_seq_len" else "launch", fact)

    def build(self, draft: VariantDraft) -> None:
        for slot, (entry, parameters) in draft.entries.items():
            if draft.facts.keys() | parameters.keys() >= set(entry.contract.facts()):
                draft.stages[slot] = build_stage(entry, draft.facts, parameters)
        for stage in draft.stages.values():
            contract = draft.entries[stage.slot][0].contract
            unfit = contract.unfit(stage.stage)
            if unfit:
                blamed = tuple(parameter.name for parameter in contract.parameters[:1])
                self.report((*draft.path, "stages", stage.slot, *blamed), unfit)
            for barrier in stage.barriers:
                if barrier.transaction_bytes > MAX_TRANSACTION_BYTES:
                    wrong = (
                        f"the barrier {barrier.name} would count {barrier.arithmetic} = "
                        f"{barrier.transaction_bytes} B; an mbarrier counts at most {MAX_TRANSACTION_BYTES} B"
                    )
                    self.report((*draft.path, "stages", stage.slot), wrong)
        self.shared_memory(draft)

    def shared_memory(self, draft: VariantDraft) -> None:
        stages = list(draft.stages.values())
        overlays = draft.skeleton.overlays if draft.skeleton else ()
        draft.regions = lay_out(stages, overlays)
        owners: dict[str, StagePlan] = {}
        for region in draft.regions:
            stage = draft.stages[region.slot]
            first = owners.setdefault(region.name, stage)
            if first is not stage:
                wrong = f"{first.name} ({first.slot}) has a shared-memory region {region.name!r} as well"
                self.report((*draft.path, "stages", region.slot), wrong)
        if shared_bytes(draft.regions) <= MAX_SHARED_BYTES:
            self.resident_ctas(draft)
            return
        largest = max(stages, key=lambda stage: sum(region.bytes for region in stage.regions))
        entry, _ = draft.entries[largest.slot]
        fitting = settings_that_fit(entry, largest, stages, draft.facts, overlays)
        path = (*draft.path, "stages", largest.slot, *(name for name, _ in fitting[:1]))
        wrong = f"too much shared memory: {shared_sum(draft.regions)}; a CTA has at most {MAX_SHARED_BYTES} B"
        self.report(path, wrong, allowed=tuple(f"{name} {value}" for name, value in fitting))

    def resident_ctas(self, draft: VariantDraft) -> None:
        """As many CTAs as the launch asks for have to fit into a multiprocessor's shared memory."""
        wanted, size = draft.facts.get("resident_ctas"), shared_bytes(draft.regions)
        whole = draft.skeleton is not None and len(draft.stages) == len(draft.skeleton.slots)
        fits = by_shared_memory(size)
        if wanted is None or not whole or wanted <= fits:
            return
        taken = allocated_bytes(size)
        wrong = (
            f"resident_ctas {wanted} needs too much shared memory: {shared_sum(draft.regions)} a CTA, which "
            f"takes {taken} B with {RESERVED_BYTES} B reserved and in units of {SHARED_UNIT} B; "
            f"{wanted} * {taken} B = {wanted * taken} B, and a multiprocessor has {SHARED_BYTES} B"
        )
        fewer = listed(range(1, fits + 1))
        self.report(self.fact_path(draft, "resident_ctas"), wrong, allowed=fewer)
