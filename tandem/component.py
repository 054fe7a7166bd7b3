"""The program of Tandem's processes: `python -P component.py [--end-with=PID] MODULE ARGUMENT...`,
as `launching.command` writes it, and the commands `tandem-router` and so on.

The program runs `main` of a module. The folder in which the program is started comes last on its
path: hooks are found there, and nothing there takes the place of an installed module. The processes
that multiprocessing starts run this file too, and so find the same modules as their parent.
"""

import importlib
import os
import signal
import sys
from functools import partial

_QUIET = __name__ != "__mp_main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""Ctrl-C ends this process at once while it imports: an exception there would show a traceback, or
be lost in a callback of the import system.
"""
if _QUIET:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

if __name__ in ("__main__", "__mp_main__"):
    # Of all packages called `tandem` the one that this file is of.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from tandem import launching

    del sys.path[0]
else:
    from tandem import launching

_INTERRUPTED = 130
"""As a shell says of a command that was ended by SIGINT."""


def run(module: str) -> int:
    """`main` of a module, with the arguments in `sys.argv`. Returns its exit status."""
    with launching.importing():
        main = importlib.import_module(module).main
    try:
        if _QUIET:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status: int = main()
    except KeyboardInterrupt:
        sys.stderr.write("\ntandem: interrupted\n")
        return _INTERRUPTED
    return status


tandem = partial(run, "tandem.cli")
frontend = partial(run, launching.module_of("frontend"))
router = partial(run, launching.module_of("router"))
prefill_worker = partial(run, launching.module_of("prefill_worker"))
decode_worker = partial(run, launching.module_of("decode_worker"))
aggregated_worker = partial(run, launching.module_of("aggregated_worker"))


def _main() -> int:
    flag, _, parent = sys.argv[1].partition("=")
    if flag == "--end-with":
        from tandem import orphans

        del sys.argv[1]
        try:
            orphans.die_with(int(parent))
        except ProcessLookupError:
            return 1  # nobody waits for what it would do
    module = sys.argv.pop(1)
    try:
        here = os.getcwd()
    except FileNotFoundError:  # the folder was deleted
        return run(module)
    if here not in sys.path:
        sys.path.append(here)
    return run(module)


if __name__ == "__main__":
    sys.exit(_main())
