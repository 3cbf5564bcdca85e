"""Whether every form of the generated modules is the same under another version of CuTe DSL.

    python -m tests.dsl_versions --other PYTHON      # PYTHON: the interpreter of an environment that has it

Compiles all forms of all modules for sm_90a and sm_100a with no GPU, here and there, and compares PTX and
machine code byte for byte. Exit status: 0 if all are the same, 1 if not.
"""

import argparse
import hashlib
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import cutlass

import generated
from variants.loading.compile import dump_folder

ROOT = Path(__file__).resolve().parent.parent

ARCHITECTURES = ("sm_90a", "sm_100a")


def digests() -> dict[str, list[str]]:
    """The digests of PTX and machine code of each form, by module, form and architecture."""
    found = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(generated.__path__)):
        module = importlib.import_module(f"generated.{name}")
        for form in (form for variant in module.VARIANTS for form in variant.forms):
            for arch in ARCHITECTURES:
                with dump_folder() as folder:
                    options = f"--keep-ptx --keep-cubin --dump-dir {folder}"
                    artifacts = module.compile_form(form, arch, options).artifacts
                    code = str(artifacts.PTX).encode(), artifacts.CUBIN
                found[f"{name}.{form} {arch}"] = [hashlib.sha256(part).hexdigest() for part in code]
    return found


def main() -> int:
    """Compare; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--other", help="the interpreter of the other environment")
    options = parser.parse_args()
    here = {"version": cutlass.__version__, "digests": digests()}
    if options.other is None:
        json.dump(here, sys.stdout)
        return 0
    command = [options.other, "-m", "tests.dsl_versions"]
    there = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    versions = here["version"], there["version"]
    if versions[0] == versions[1]:
        print(f"both environments have CuTe DSL {versions[0]}: nothing was compared", file=sys.stderr)
        return 1
    names = sorted(here["digests"].keys() | there["digests"].keys())
    unlike = [name for name in names if here["digests"].get(name) != there["digests"].get(name)]
    for name in unlike:
        print(f"{name}: unlike under CuTe DSL {versions[0]} and {versions[1]}", file=sys.stderr)
    print(f"{len(names) - len(unlike)} of {len(names)} kernels are the same under {' and '.join(versions)}")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
