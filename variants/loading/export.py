"""Compiles all kernels of a module ahead of time, into a folder that `prepare` loads them from.

Contract
    Needs no GPU. A folder is right at every moment, whoever else exports into it: cubins are named by their
    content, and the manifest, in which the kernels are found, is written in one step when all of them are
    there. Cubins are removed only by who holds the folder alone, and has just written the manifest that does
    not list them.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from variants.identity import NAME, VARIANTS
from variants.loading.artefact import cubin_name, manifest_name, origin, record
from variants.loading.atomic import locked, write_whole
from variants.loading.compile import compile_image
from variants.loading.environment import check_environment
from variants.refusal import require


def export_kernels(
    folder: Any, *, arch: str, progress: Callable[[Path], None] = lambda path: None
) -> list[Path]:
    """Compile every form of every variant, then write the manifest; returns the files.

    folder: made if it does not exist; it may hold other modules' kernels and those for other architectures.
    Cubins of this module and architecture that are out of date are removed. arch: such as "sm_90a".
    progress: called with each file once it is written.

    Raises ValueError for what is no architecture, OSError, and RuntimeError where the module's file was
    replaced after it was imported, or an environment variable changes what CuTe DSL compiles.
    """
    require(
        isinstance(arch, str) and re.fullmatch(r"sm_\d+[af]?", arch) is not None,
        f'arch must name an architecture such as "sm_90a", got {arch!r}',
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_environment()
    records: list[dict[str, Any]] = []
    cubins: dict[Path, bytes] = {}
    for form in (form for variant in VARIANTS for form in variant.forms):
        image = compile_image(form, arch)
        records.append(record(form, image))
        file = folder / cubin_name(form, arch, records[-1]["sha256"])
        cubins[file] = image.cubin
        write_whole(file, image.cubin)
        progress(file)
    manifest = folder / manifest_name(arch)
    text = json.dumps({**origin(arch), "kernels": records}, indent=1)
    with locked(folder) as alone:
        # Another version's export may have removed what it does not list.
        for file in (file for file in cubins if not file.exists()):
            write_whole(file, cubins[file])
        write_whole(manifest, f"{text}\n".encode())
        if alone:
            for old in set(folder.glob(f"{NAME}.*.{arch}.*.cubin")) - set(cubins):
                old.unlink(missing_ok=True)
    progress(manifest)
    return [*cubins, manifest]
