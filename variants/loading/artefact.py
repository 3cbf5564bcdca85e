"""Kernels that were compiled ahead of time: how they lie in a folder, and which of them may be run.

Contract
    For each module and architecture a folder holds one manifest, JSON, and a cubin for each form of each
    variant. The manifest says what the kernels were made from and by what, and what each of them is. `read`
    gives machine code only if all of that is so for this module here and now, and the bytes are those that
    were written. The digests tell stale, foreign and damaged files apart from good ones; they are no
    protection against someone who wants to run other code.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import cutlass

from variants.identity import DIGEST, NAME, variant_named
from variants.kernels.arguments import parameters
from variants.loading.compile import Image
from variants.refusal import require
from variants.variant import Form

FORMAT = 1
"""Of manifests; a number larger than that of any other layout."""


def manifest_name(arch: str) -> str:
    """The manifest's file of this module for an architecture."""
    return f"{NAME}.{arch}.json"


def cubin_name(form: Form, arch: str, sha256: str) -> str:
    """The file of a form's machine code; other code has another name, so a manifest never points to it."""
    return f"{NAME}.{form}.{arch}.{sha256[:16]}.cubin"


def origin(arch: str) -> dict[str, Any]:
    """What a manifest says of where its kernels come from."""
    return {
        **{"format": FORMAT, "module": NAME, "digest": DIGEST},
        **{"arch": arch, "cute_dsl": cutlass.__version__},
    }


def description(form: Form) -> dict[str, Any]:
    """What a manifest says of a kernel besides its bytes: the launch, and the types of its parameters."""
    kernel = variant_named(form.variant).kernel
    return {
        **form._asdict(),
        "cluster": kernel.cluster,
        "threads": 32 * kernel.warps,
        "shared_bytes": kernel.shared_bytes,
        "parameters": parameters(type(kernel)),
    }


def record(form: Form, image: Image) -> dict[str, Any]:
    """A manifest's entry for a kernel."""
    identity = {"entry": image.entry, "bytes": len(image.cubin)}
    return {**description(form), **identity, "sha256": hashlib.sha256(image.cubin).hexdigest()}


def read(folder: Any, form: Form, arch: str) -> Image:
    """The machine code of a form for an architecture. Raises ValueError where there is none to be run."""
    path = Path(folder) / manifest_name(arch)
    again = f"export the kernels for {arch} again"
    manifest = _manifest(path, again)
    for name, needed in origin(arch).items():
        got = manifest.get(name)
        require(got == needed, f"from_dir: {path} has {name} {got!r}, this module needs {needed!r}; {again}")
    kernels = {
        (k.get("variant"), k.get("pdl"), k.get("windowed")): k
        for k in manifest.get("kernels", ())
        if isinstance(k, dict)
    }
    require(form in kernels, f"from_dir: {path} has no kernel {form}; {again}")
    found = kernels[form]
    for name, needed in description(form).items():
        got = found.get(name)
        require(got == needed, f"from_dir: {path}: kernel {form} has {name} {got!r}, not {needed!r}; {again}")
    sha256, entry = str(found.get("sha256")), str(found.get("entry"))
    # It becomes a part of a path.
    require(
        re.fullmatch("[0-9a-f]{64}", sha256) is not None,
        f"from_dir: {path} is damaged: kernel {form} has sha256 {sha256!r}; {again}",
    )
    file = path.with_name(cubin_name(form, arch, sha256))
    try:
        cubin = file.read_bytes()
    except OSError as error:
        raise ValueError(f"from_dir: {file} cannot be read: {error.strerror}; {again}") from error
    held = hashlib.sha256(cubin).hexdigest()
    require(held == sha256, f"from_dir: {file} is damaged: SHA-256 {held}, written was {sha256}; {again}")
    require(entry.encode() in cubin, f"from_dir: {file} has no kernel {entry!r}; {again}")
    return Image(cubin, entry)


def _manifest(path: Path, again: str) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"from_dir: {path} cannot be read: {error.strerror}; {again}") from error
    except ValueError as error:
        raise ValueError(f"from_dir: {path} is damaged: {error}; {again}") from error
    require(isinstance(manifest, dict), f"from_dir: {path} is damaged: no JSON object; {again}")
    return manifest
