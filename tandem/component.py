"""The program of Tandem's processes: `python -P component.py [--end-with=PID] MODULE ARGUMENT...`,
as `own_packages.command` writes it, and the commands `tandem-router` and so on.

It runs `main` of a module of Tandem's packages, which it finds before whatever else has their
names. The folder in which it is started comes last on its path: hooks are found there, and nothing
there takes the place of an installed module. The processes that multiprocessing starts run this
file too, and so find what their parent finds.
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
    from tandem import own_packages

    del sys.path[0]
else:
    from tandem import own_packages

own_packages.prefer()
_INTERRUPTED = 130
"""As a shell says of a command that was ended by SIGINT."""


def run(module: str) -> int:
    """`main` of a module, or of a package's `__main__`, with the arguments in `sys.argv`. Returns
    its exit status.
    """
    package = module in own_packages.PACKAGES
    main = importlib.import_module(f"{module}.__main__" if package else module).main
    try:
        if _QUIET:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status: int = main()
    except KeyboardInterrupt:
        sys.stderr.write("\ntandem: interrupted\n")
        return _INTERRUPTED
    return status


tandem = partial(run, "tandem.cli")
frontend = partial(run, "frontend")
router = partial(run, "router")
prefill_worker = partial(run, "prefill_worker")
decode_worker = partial(run, "decode_worker")
aggregated_worker = partial(run, "aggregated_worker")


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
