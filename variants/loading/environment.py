"""Environment variables of CuTe DSL that change what it compiles.

Contract
    A manifest of exported kernels says what they were made from; a variable that changes the machine code, or
    leaves it out, is refused by name, since the manifest could not tell. Variables that were seen to leave
    the machine code as it is are listed. What CuTe DSL takes for off counts as not set.
"""

import os

PREFIX = "CUTE_DSL_"
"""Of CuTe DSL's variables."""

HARMLESS = frozenset(
    {
        *(
            "ARCH",
            "CACHE_DIR",
            "DISABLE_FILE_CACHING",
            "DUMP_DIR",
            "FILTER_STACKTRACE",
            "JIT_CACHE_MAX_ELEMS",
        ),
        *("JIT_TIME_PROFILING", "LIBS", "LOG_LEVEL", "LOG_TO_CONSOLE", "LOG_TO_FILE", "NO_CACHE"),
        *("PRINT_AFTER_PREPROCESSOR", "PRINT_IR", "SHOW_STACKTRACE", "WARNINGS_AS_ERRORS", "WARNINGS_IGNORE"),
    }
)
"""What may be set, without the prefix: caches, logs, folders, and the architecture, which is always named."""

OFF = frozenset({"", "0", "false", "off", "no"})


def changing_variables() -> list[str]:
    """The variables that are set and may change the machine code, as NAME=value."""
    return [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIX)
        and name.removeprefix(PREFIX) not in HARMLESS
        and value.strip().lower() not in OFF
    ]


def check_environment() -> None:
    """No variable changes what is exported. Raises RuntimeError."""
    found = changing_variables()
    if found:
        raise RuntimeError(
            f"{', '.join(found)}: changes what CuTe DSL compiles, and the manifest of exported kernels could "
            "not tell; unset it to export"
        )


def check_code_is_made() -> None:
    """CuTe DSL compiles to machine code at all. Raises RuntimeError."""
    dry = [variable for variable in changing_variables() if variable.startswith(f"{PREFIX}DRYRUN=")]
    if dry:
        raise RuntimeError(f"{dry[0]}: CuTe DSL makes no machine code; unset it")
