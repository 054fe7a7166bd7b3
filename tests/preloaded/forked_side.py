"""Run by test_fork_server.py: what a program sees of itself. Prints JSON."""

import json
import os
import sys
import threading
import time

if __name__ == "__main__":
    print(
        json.dumps(
            {
                "imported": "sglang.srt.managers.scheduler" in sys.modules,
                "arguments": sys.argv[1:],
                "parent": os.getppid(),
                "leads_session": os.getsid(0) == os.getpid(),
                "folder": os.getcwd(),
                "variable": os.environ.get("FORKED"),
                "path": sys.path[:2],
                "input": sys.stdin.read(),
                "passed": os.read(int(sys.argv[1]), 10).decode(),
                "threads": threading.active_count(),
                "cpu_clock": time.clock_gettime(
                    time.pthread_getcpuclockid(threading.main_thread().ident or 0)
                )
                <= time.process_time(),
            }
        )
    )
    sys.exit(3)
