"""The frontends that the playground is tried on, with real HTTP.

run.py starts it as it starts scripted.py. It says their addresses on standard output, as JSON:

- `scripted`: its model follows instructions to the letter, and is told them by a user's last words:
  STORY never ends, BREAK fails after some words, HUGE is half a megabyte, MARKUP is what would run
  if it became part of a page, MARKDOWN has all of its parts, CANCELLED tells how many answers were
  given up, WAIT says nothing until another is told RELEASE. All else is as scripted.py has it. It
  asks for a key, and gives no reports.
- `stack`: the processes of a real stack with the sim engine, a hook in each phase, reports, and one
  slot in decode.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

import scripted
from fake_router import Reply
from harness import serving

from tandem.errors import EngineError
from tandem.testing.sim_stack import sim_stack

MARKUP = (
    "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
    "<svg onload='window.ran = 1'></svg><a href='javascript:window.ran = 1'>here</a>"
)
MARKDOWN = """# A *title*

Some **strong**, *stressed*, ~~old~~ and `plain <b>` words,
and a [page](https://example.org/a?b=c): https://example.org/d.

1. first
   goes on
   - inner
2. second

```python
if a < b:
    **print**("<i>")
```

> said [elsewhere](javascript:window.ran=1)
> by ![a picture](//example.org/p.png)

---
2 * 3 * 4, snake_case_name, \\*not\\* [half](https://example.org
"""
HUGE = "".join(f"{line} {'word ' * 19}" + "\n" * (line % 50 + 1) for line in range(4_000))
_ROW = 10_000
_STEP_SECONDS = 0.02
_TOLD = re.compile(r"\b(STORY|BREAK|HUGE|MARKUP|MARKDOWN|CANCELLED|WAIT|RELEASE)\b")


class Model:
    def __init__(self) -> None:
        self.cancelled = 0
        self._released = asyncio.Event()

    async def say(self, reply: Reply) -> None:
        prompt = scripted.prompt_of(reply)
        told = _TOLD.search(prompt.rpartition("<|im_start|>user")[2])
        match told and told[1]:
            case "STORY":
                await self._go_on(reply)
            case "BREAK":
                reply.text("Once upon a")
                await reply.flush()
                reply.end(error=EngineError("the engine <b>fell</b> over").to_proto())
            case "HUGE":
                await scripted.tell(reply, HUGE, row=_ROW)
            case "MARKUP":
                await scripted.tell(reply, MARKUP)
            case "MARKDOWN":
                await scripted.tell(reply, MARKDOWN)
            case "CANCELLED":
                await scripted.tell(reply, str(self.cancelled))
            case "WAIT":
                await self._released.wait()
                await scripted.tell(reply, scripted.GREETING)
            case "RELEASE":
                self._released.set()
                await scripted.say(reply)
            case _:
                await scripted.say(reply)

    async def _go_on(self, reply: Reply) -> None:
        while not reply.cancelled.is_set():
            reply.text("and then ")
            await reply.flush()
            await asyncio.sleep(_STEP_SECONDS)
        self.cancelled += 1


async def main() -> None:
    hook = "rationed:Rationed"
    settings = {
        "frontend": {"playground": True, "allow_reports": True},
        "decode_worker": {"max_sequences": 1},
    }
    with sim_stack(hook, prefill_hook=hook, settings=settings) as stack:
        async with serving(
            scripted.MODEL_PATH, Model().say, {**scripted.SETTINGS, "playground": True}
        ) as frontend:
            frontend.router.change_fleet(frontend.fleet(logits_processors=scripted.PROCESSORS))
            addresses = {"scripted": f"http://127.0.0.1:{frontend.port}", "stack": stack.url}
            print(json.dumps(addresses), flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
