// The playground in Chromium, against the frontends of ../playground_server.py.
import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { openBrowser } from "./browser.mjs";
import { GREETING, MODEL, key } from "./server.mjs";

const { scripted, stack } = JSON.parse(process.env.TANDEM_PLAYGROUND);
const DESK = { width: 900, height: 760 };
const PHONE = { width: 390, height: 800 };
const WEATHER = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
    },
  },
];

let browser;
let page;
let said; // what the console said that nobody expects
let sent; // bodies of the requests for an answer

before(async () => (browser = await openBrowser({ viewport: DESK })));
after(() => browser.close());

beforeEach(async () => {
  page = await browser.context.newPage();
  page.setDefaultTimeout(20_000);
  said = [];
  sent = [];
  page.on("pageerror", (error) => said.push(error.message));
  page.on("console", (message) => {
    const expected = /^Failed to load resource: the server responded with a status of 40/;
    if (message.type() === "error" && !expected.test(message.text())) said.push(message.text());
  });
  page.on("request", (request) => request.method() === "POST" && sent.push(request));
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
  });
});

// No test is passed by a page that fails, runs what an answer says, or breaks its own policy.
afterEach(async () => {
  assert.deepEqual(said, []);
  assert.deepEqual(await page.evaluate(() => window.violations), []);
  assert.equal(await page.evaluate(() => window.ran), undefined);
  await page.close();
});

async function open(url = scripted) {
  await page.goto(`${url}/playground`);
  if (url === scripted) await page.getByLabel("API key").fill(key);
  await page.getByLabel("API key").press("Tab");
  await page.locator("#model option").waitFor({ state: "attached" });
}

async function ask(text) {
  await page.getByLabel("Message").fill(text);
  await page.getByLabel("Message").press("Enter");
}

async function ended(number = 1) {
  await page.locator(".turn.assistant[aria-busy=false]").nth(number - 1).waitFor();
  return page.locator(".turn.assistant").nth(number - 1);
}

const text = (turn) => turn.locator("> .text").innerText();
const bodies = () => sent.map((request) => request.postDataJSON());

test("a chat goes on, and can be begun anew", async () => {
  await open();
  await ask("Hello");
  const turn = await ended();
  assert.equal(await text(turn), GREETING);
  assert.match(await turn.locator("footer").innerText(), /stop[^]*tokens in, \d+ out[^]*[\d.]+ tokens\/s[^]*trace id [0-9a-f]{32}/);
  await ask("And again");
  assert.equal(await text(await ended(2)), GREETING);
  const { messages, model, stream } = bodies().at(-1);
  assert.deepEqual(messages, [
    { role: "user", content: "Hello" },
    { role: "assistant", content: GREETING },
    { role: "user", content: "And again" },
  ]);
  assert.deepEqual([model, stream], [MODEL, true]);
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await page.locator(".turn").count(), 0);
  await ask("Anew");
  await ended();
  assert.deepEqual(bodies().at(-1).messages, [{ role: "user", content: "Anew" }]);
});

test("an answer says that it waits for its first token, and for how long", async () => {
  await open();
  await ask("WAIT");
  const turn = page.locator(".turn.assistant");
  await turn.getByText(/^Waiting for the first token, \d+ s$/).waitFor();
  const body = { model: MODEL, messages: [{ role: "user", content: "RELEASE" }] };
  const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };
  await fetch(`${scripted}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  assert.equal(await text(await ended()), GREETING);
  assert.doesNotMatch(await turn.innerText(), /Waiting/);
});

test("an answer that waits says what for, until it comes", async () => {
  await open(stack);
  const others = new AbortController();
  const body = { model: MODEL, messages: [{ role: "user", content: "Go on" }], max_tokens: 3000, ignore_eos: true };
  const queue = Array.from({ length: 40 }, () =>
    fetch(`${stack}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal: others.signal,
    }),
  ); // decode has one slot
  await queue[0];
  await ask("Hello");
  const turn = page.locator(".turn.assistant");
  const waits = /^Waiting for the first token, \d+ s: no slot is free on decode, which has 1; \d+ more wait$/;
  await turn.getByText(waits).waitFor();
  others.abort();
  await Promise.allSettled(queue);
  assert.doesNotMatch(await (await ended()).innerText(), /Waiting/);
});

test("an answer that is refused waits no longer", async () => {
  await open();
  await page.getByLabel("Temperature").fill("7");
  await ask("Hello");
  const turn = await ended();
  await turn.getByRole("alert").waitFor();
  assert.doesNotMatch(await turn.innerText(), /Waiting/);
});

test("reasoning is apart, folded, and sent back as such", async () => {
  await open();
  await ask("Please think");
  const turn = await ended();
  const reasoning = turn.locator(".reasoning");
  assert.equal(await reasoning.getAttribute("open"), null);
  assert.equal(await reasoning.locator(".text").isVisible(), false);
  await reasoning.locator("summary").click();
  assert.equal((await reasoning.locator(".text").innerText()).trim(), "I greet.");
  assert.equal((await text(turn)).trim(), GREETING);
  assert.match(await turn.locator("footer").innerText(), /of reasoning/);
  await ask("Hello");
  await ended(2);
  assert.match(bodies().at(-1).messages[1].reasoning_content, /I greet/);
});

test("a call of a tool waits for its result, and the conversation goes on with it", async () => {
  await open();
  await page.getByLabel("A list of tools").fill(JSON.stringify(WEATHER));
  await ask("How warm is it?");
  const call = (await ended()).locator(".call");
  assert.match(await call.innerText(), /call of weather\s+\{"place": "Bern"\}/);
  assert.ok(await page.getByLabel("Message").isDisabled());
  await call.getByLabel("Result of weather").fill("20 degrees");
  await page.getByRole("button", { name: "Send results" }).click();
  assert.equal(await text(await ended(2)), "The tool says: 20 degrees");
  assert.ok(await page.getByLabel("Message").isEnabled());
  const { messages, tools } = bodies().at(-1);
  assert.deepEqual(tools, WEATHER);
  const [, made, result] = messages;
  assert.equal(made.tool_calls[0].function.arguments, '{"place": "Bern"}');
  assert.deepEqual(result, { role: "tool", tool_call_id: made.tool_calls[0].id, content: "20 degrees" });
});

test("the example of a tool is one, and what is no list of tools is not sent", async () => {
  await open();
  await page.getByRole("button", { name: "Example" }).click();
  await ask("How warm is it?");
  assert.equal(await (await ended()).locator(".call").count(), 1);
  const before = sent.length;
  await page.getByRole("button", { name: "New chat" }).click();
  for (const [wrong, why] of [["[{", "is no JSON"], ["{}", "must be a JSON list"]]) {
    await page.getByLabel("A list of tools").fill(wrong);
    await ask("Hello");
    await page.getByText(why).waitFor();
    await page.getByRole("button", { name: "New chat" }).click();
  }
  assert.equal(sent.length, before);
});

test("the trace shows both phases, their hooks' verdicts and the KV cache", async () => {
  await open(stack);
  await page.getByLabel("Max tokens").fill("40");
  await ask("Tell me something");
  const turn = await ended();
  assert.equal(sent.length, 1);
  await turn.getByText("Trace", { exact: true }).click();
  const [prefill, decode] = await turn.locator(".leg").allInnerTexts();
  assert.match(prefill, /^prefill\s[^]*prefill_worker-0[^]*1 emitted/);
  assert.match(decode, /^decode\s[^]*decode_worker-0[^]*4 emitted\s+4 suppressed\s+1 terminated/);
  const { tandem } = JSON.parse(await lastChunk());
  const kv = tandem.phases.map((phase) => phase.kv_bytes).find(Boolean);
  assert.match(await turn.locator(".moved").innerText(), new RegExp(`${kv.toLocaleString("en")} bytes`));
  assert.match(await turn.locator("footer").innerText(), new RegExp(`by rationed[^]*in the queue[^]*${tandem.trace_id}`));
  assert.match(await turn.locator(".timeline").innerText(), /first token [\d.]+ m?s[^]*whole answer [\d.]+ m?s/);
  const bar = await turn.locator(".bar span").evaluateAll((all) => all.map((each) => [each.className, each.style.flexGrow]));
  const [times] = tandem.timeline;
  const shares = Object.entries(times).filter(([name, seconds]) => name.endsWith("_seconds") && seconds > 0)
    .map(([name, seconds]) => [name.replace("_seconds", ""), seconds / tandem.request_seconds]);
  assert.ok(["queue", "prefill", "kv"].every((name) => shares.some(([each]) => each === name)));
  assert.deepEqual(bar.map(([name]) => name), shares.map(([name]) => name));
  bar.forEach(([, grow], place) => assert.ok(Math.abs(grow - shares[place][1]) < 1e-4));
});

test("the page says that the answers of a simulated engine are random words, and of no other", async () => {
  await open(stack);
  await page.getByText("The engine is simulated: its answers are random words.").waitFor();
  await open();
  assert.equal(await page.locator("#simulated").isVisible(), false);
});

async function lastChunk() {
  const lines = (await (await sent[0].response()).text()).split("\n\n");
  return lines.at(-3).replace("data: ", "");
}

test("where reports are not allowed the page says so, and answers all the same", async () => {
  await open();
  await ask("Hello");
  const turn = await ended();
  assert.equal(await text(turn), GREETING);
  assert.deepEqual(bodies().map(({ tandem }) => tandem), [{ report: true }, undefined]);
  assert.match(await turn.innerText(), /this deployment gives no reports/);
  assert.ok(await page.getByLabel("ask for each answer's way").isDisabled());
  await page.getByText("its setting allow_reports is off").waitFor();
});

test("a refusal is shown as the server typed it, marks its field, and costs its turn alone", async () => {
  await open();
  await ask("Hello");
  await ended();
  await page.getByLabel("Temperature").fill("7");
  await ask("And now?");
  assert.match(await (await ended(2)).locator("footer").innerText(), /trace id [0-9a-f]{32}/);
  const failure = page.locator(".turn").getByRole("alert");
  assert.match(await failure.innerText(), /^400 invalid_request[^]*Field: temperature$/);
  assert.equal(await page.getByLabel("Temperature").getAttribute("aria-invalid"), "true");
  assert.equal(await page.getByLabel("Message").inputValue(), "And now?");
  await page.getByLabel("Temperature").fill("0.5");
  await page.getByLabel("Message").press("Enter");
  assert.equal(await text(await ended(3)), GREETING);
  assert.equal(await page.getByLabel("Temperature").getAttribute("aria-invalid"), null);
  const { messages, temperature } = bodies().at(-1);
  assert.deepEqual([messages.length, temperature], [3, 0.5]);
});

test("what is set is what is sent", async () => {
  await open();
  const set = { "Top p": 0.9, "Top k": 5, "Min p": 0.1, "Max tokens": 30, Seed: 7, "Frequency penalty": 0.5, "Presence penalty": -0.5 };
  for (const [label, value] of Object.entries(set)) await page.getByLabel(label).fill(String(value));
  await page.getByLabel("System prompt").fill("Be brief.");
  await page.getByLabel("Stop strings").fill("END\n\n  two");
  await page.getByLabel("Reasoning effort").selectOption("low");
  await page.getByLabel("Tool choice").selectOption("required"); // which means nothing without tools
  await page.getByLabel("ask for each answer's way").uncheck();
  await ask("Hello");
  await ended();
  const { messages, model, stream, stream_options, ...fields } = bodies()[0];
  assert.deepEqual(messages[0], { role: "system", content: "Be brief." });
  assert.deepEqual(fields, {
    top_p: 0.9, top_k: 5, min_p: 0.1, max_tokens: 30, seed: 7, frequency_penalty: 0.5, presence_penalty: -0.5,
    stop: ["END", "  two"], reasoning_effort: "low",
  });
  await page.getByLabel("Seed").fill("9007199254740993");
  await ask("Hello");
  await page.getByText("larger than this page can send exactly").waitFor();
  assert.equal(sent.length, 1);
});

test("an error in a stream is shown behind what had come", async () => {
  await open();
  await ask("BREAK");
  const turn = await ended();
  assert.equal(await text(turn), "Once upon a");
  assert.match(await turn.getByRole("alert").innerText(), /^engine_error\s+the engine <b>fell<\/b> over/);
  assert.match(await turn.innerText(), /trace id [0-9a-f]{32}[^]*No trace/);
  assert.equal(await page.getByLabel("Message").inputValue(), "BREAK");
});

test("a stream that is cut, and what is no answer of the server, are not taken for answers", async () => {
  await open();
  const chunk = { choices: [{ index: 0, delta: { content: "Half" } }] };
  const chunks = (end) => ({ contentType: "text/event-stream", body: `data: ${JSON.stringify(chunk)}\n\n${end}` });
  for (const [number, answer, shown, said] of [
    [1, chunks(""), "Half", /the answer is not whole/],
    [2, chunks("data: {\n\n"), "Half", /The stream broke off/],
    [3, { status: 502, contentType: "text/html", body: "<h1>Bad gateway</h1>" }, "", /^502\s+<h1>Bad gateway<\/h1>$/],
    [4, null, "", /No answer came/],
  ]) {
    await page.route("**/v1/chat/completions", (route) => (answer ? route.fulfill(answer) : route.abort()));
    await ask("Hello");
    const turn = await ended(number);
    if (shown) assert.equal(await text(turn), shown);
    assert.match(await turn.getByRole("alert").innerText(), said);
    await page.unrouteAll();
  }
  said = said.filter((line) => !/502|net::ERR_FAILED/.test(line));
  await ask("Hello");
  assert.equal(await text(await ended(5)), GREETING);
  assert.equal(bodies().at(-1).messages.length, 1);
});

test("an answer is shown as it streams; stop ends it here and at the server, and what came of it stays", async () => {
  await open();
  await ask("STORY");
  for (const words of ["and then", "and then and then", "and then and then and then and then"]) {
    await page.locator(".assistant[aria-busy=true] > .text", { hasText: words }).waitFor();
  }
  await page.getByRole("button", { name: "Stop" }).click();
  const turn = await ended();
  assert.match(await turn.locator("footer").innerText(), /^stopped/);
  assert.ok(await page.getByRole("button", { name: "Send" }).isVisible());
  const shown = await turn.locator("> .text").evaluate((node) => node.textContent);
  for (let number = 2, known = "0"; known === "0"; number++) {
    await ask("CANCELLED");
    known = await text(await ended(number));
  }
  assert.equal(bodies().at(-1).messages[1].content, shown);
  await ask("STORY");
  await page.locator(".assistant[aria-busy=true] > .text", { hasText: "and then" }).waitFor();
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await page.locator(".turn").count(), 0);
  assert.equal(await page.getByLabel("Message").inputValue(), "");
  await ask("Hello");
  assert.equal(await text(await ended()), GREETING);
});

test("markup in an answer, a question, a result and an error is text", async () => {
  await open();
  await ask("MARKUP <img src=x onerror='window.ran = 1'>");
  const turn = await ended();
  assert.match(await text(turn), /^<script>window.ran = 1<\/script><img/);
  assert.equal(await page.locator("#conversation").locator("script, img, svg, a").count(), 0);
  await page.getByLabel("A list of tools").fill(JSON.stringify(WEATHER).replace("Bern", "<b>"));
  await ask("How warm is it?");
  await (await ended(2)).getByLabel("Result of weather").fill("<img src=x onerror='window.ran = 1'>");
  await page.getByRole("button", { name: "Send results" }).click();
  assert.match(await text(await ended(3)), /The tool says: <img src=x/);
  assert.equal(await page.locator("#conversation").locator("script, img, svg, a").count(), 0);
});

test("the policy lets no markup, no other script and no other server in, and nobody frame the page", async () => {
  await open();
  const refused = await page.evaluate(async () => {
    const tried = {
      markup: () => (document.body.innerHTML = "<p>"),
      script: () => (document.createElement("script").text = "window.ran = 1"),
      code: () => new Function("window.ran = 1")(),
      elsewhere: () => fetch("https://other.example/"),
      style: () => {
        document.body.setAttribute("style", "color: red");
        if (!document.body.style.color) throw new Error("ignored");
      },
    };
    const names = [];
    await new Promise((resolve) => setTimeout(resolve)); // the debugger that runs this may evaluate code at first
    for (const [name, attempt] of Object.entries(tried)) {
      try {
        await attempt();
      } catch {
        names.push(name);
      }
    }
    return names;
  });
  assert.deepEqual(refused, ["markup", "script", "code", "elsewhere", "style"]);
  await page.waitForFunction(() => window.violations.length === 5);
  await page.goto(`${scripted}/docs`); // a page without a policy of its own
  await page.evaluate((url) => {
    window.frame = document.createElement("iframe");
    window.frame.src = url;
    document.body.append(window.frame);
    return new Promise((resolve) => (window.frame.onload = resolve));
  }, `${scripted}/playground`);
  assert.match(page.frames()[1].url(), /^chrome-error:/);
  said = said.filter((line) => !/Content Security Policy|TrustedScript|TrustedHTML/.test(line));
});

test("the key is asked for, sent as such, and kept nowhere", async () => {
  await page.goto(`${scripted}/playground`);
  await page.getByText("An API key is needed").waitFor();
  await page.getByLabel("API key").fill(key);
  await page.getByLabel("API key").press("Tab");
  await page.locator("#models-failure").waitFor({ state: "hidden" });
  assert.equal(await page.locator("#model").inputValue(), MODEL);
  await ask("Hello");
  await ended();
  assert.equal((await sent[0].allHeaders()).authorization, `Bearer ${key}`);
  const kept = await page.evaluate(async () => [
    localStorage.length,
    sessionStorage.length,
    document.cookie,
    (await indexedDB.databases()).length,
    location.href,
  ]);
  assert.deepEqual(kept, [0, 0, "", 0, `${scripted}/playground`]);
  await page.reload();
  assert.equal(await page.getByLabel("API key").inputValue(), "");
});

test("half a megabyte of an answer is all there, in parts that are laid out one by one", async () => {
  await open();
  await ask("HUGE");
  const shown = (await ended()).locator("> .text");
  const paragraphs = await shown.locator("p").evaluateAll((all) => all.map((each) => each.textContent));
  const lines = [...Array(4_000).keys()].map((line) => `${line} ${"word ".repeat(19)}`);
  // Of fifty lines one has no empty line behind it, and goes on in the next.
  assert.equal(paragraphs.join("\n"), lines.join("\n"));
  assert.ok(paragraphs.every((each) => each.length < 5000));
});

const SHOWN =
  "<h3>A <em>title</em></h3>" +
  "<p>Some <strong>strong</strong>, <em>stressed</em>, <del>old</del> and <code>plain &lt;b&gt;</code> words,\nand a " +
  link("https://example.org/a?b=c", "page") + ": " + link("https://example.org/d") + ".</p>" +
  '<ol start="1"><li>first\ngoes on<ul><li>inner</li></ul></li><li>second</li></ol>' +
  '<figure><header><span>python</span><button type="button" class="small copy" aria-label="Copy code">Copy</button></header>' +
  '<pre><div class="code"><div class="block">if a &lt; b:\n    **print**("&lt;i&gt;")\n</div></div></pre></figure>' +
  "<blockquote>said [elsewhere](javascript:window.ran=1)\nby ![a picture](//example.org/p.png)</blockquote>" +
  "<hr><p>2 * 3 * 4, snake_case_name, *not* [half](" + link("https://example.org") + "</p>";

function link(address, label = address) {
  return `<a href="${address}" title="${address}" target="_blank" rel="noopener noreferrer">${label}</a>`;
}

test("Markdown in an answer becomes parts of the page, and nothing that runs or is fetched", async () => {
  await open();
  await ask("MARKDOWN");
  const shown = (await ended()).locator("> .text");
  assert.equal(await shown.evaluate((node) => node.innerHTML), SHOWN);
  assert.equal(await shown.locator("img, script").count(), 0);
});

test("Markdown is shown alike whether it comes at once or letter by letter", async () => {
  await open();
  await ask("MARKDOWN");
  await ended();
  const text = await copied("Copy answer");
  const shown = await page.evaluate(async (text) => {
    const { GrowingMarkdown } = await import("/playground/markdown.js");
    return [text.length, 1, 7].map((step) => {
      const growing = new GrowingMarkdown("text");
      for (let end = step; end < text.length + step; end += step) growing.show(text.slice(0, end));
      return growing.node.innerHTML;
    });
  }, text);
  assert.deepEqual(shown, [SHOWN, SHOWN, SHOWN]);
});

test("a megabyte that is made to be slow is shown in time, whole, and in a bounded number of parts", async () => {
  await open();
  const took = await page.evaluate(async () => {
    const { GrowingMarkdown } = await import("/playground/markdown.js");
    const hostile = {
      marks: "*a _b **c ", links: "[a](http://b [", ticks: "`a``b```c", stars: "*", brackets: "[", escapes: "\\*",
      lists: "- a\n", deeper: "\n          - a\n                    - b\n", quotes: "> > > a\n", fences: "```\na\n```\n",
      rules: "- - - - a\n", addresses: "http://a. ", spaces: " ", lines: "a\n\n",
    };
    const found = {};
    for (const [name, piece] of Object.entries(hostile)) {
      const text = piece.repeat(2 ** 20 / piece.length);
      const growing = new GrowingMarkdown("text");
      const began = performance.now();
      for (let end = 0; end < text.length + 5_000; end += 5_000) growing.show(text.slice(0, end));
      const all = growing.node.querySelectorAll("*");
      const depth = (node) => (node === growing.node ? 0 : 1 + depth(node.parentNode));
      found[name] = {
        seconds: (performance.now() - began) / 1e3,
        parts: all.length,
        letters: growing.node.textContent.replaceAll("Copy", "").split("a").length === text.split("a").length,
        depth: Math.max(...[...all].slice(0, 1_000).map(depth)),
      };
    }
    return found;
  });
  for (const [name, { seconds, parts, letters, depth }] of Object.entries(took)) {
    assert.ok(seconds < 10, `${name}: ${seconds} s`);
    assert.ok(parts < 25_000, `${name}: ${parts} parts`);
    assert.ok(depth < 20, `${name}: ${depth} deep`);
    assert.ok(letters, `${name}: some of the text is not there`);
  }
});

// What a button copied.
async function copied(name) {
  await browser.context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.getByRole("button", { name }).last().click();
  await page.getByRole("button", { name }).last().getByText("Copied").waitFor();
  return page.evaluate(() => navigator.clipboard.readText());
}

test("an answer and its code are copied as the model wrote them, without a clipboard of the browser too", async () => {
  await open();
  await ask("MARKDOWN");
  await ended();
  assert.match(await copied("Copy answer"), /^# A \*title\*\n[^]*\[half\]\(https:\/\/example.org\n$/);
  assert.equal(await copied("Copy code"), 'if a < b:\n    **print**("<i>")\n');
  await page.waitForFunction(() => !document.body.innerText.includes("Copied"));
  await page.evaluate(() => Object.defineProperty(navigator, "clipboard", { value: undefined }));
  await page.getByRole("button", { name: "Copy answer" }).click();
  await page.getByRole("button", { name: "Copy answer" }).getByText("Copied").waitFor();
  await page.getByLabel("Message").press("Control+V");
  assert.match(await page.getByLabel("Message").inputValue(), /^# A \*title\*\n/);
});

test("the last turn is tried again in its own place, after an answer and after a failure", async () => {
  await open();
  await ask("Hello");
  await ended();
  await ask("And again");
  await ended(2);
  const retry = page.getByRole("button", { name: "Retry" });
  assert.equal(await retry.count(), 1, "the last turn alone has it");
  sent = [];
  await retry.click();
  await page.waitForFunction(() => document.querySelectorAll("footer").length === 2);
  assert.equal(await page.locator(".turn").count(), 4);
  const { messages } = bodies().at(-1);
  assert.deepEqual(messages.map(({ content }) => content), ["Hello", GREETING, "And again"]);

  await page.getByLabel("Temperature").fill("7");
  await ask("What then?");
  await page.getByRole("alert").waitFor();
  assert.equal(await page.getByLabel("Message").inputValue(), "What then?");
  await page.getByLabel("Temperature").fill("0.5");
  await retry.click();
  assert.equal(await text(await ended(3)), GREETING);
  assert.equal(await page.getByLabel("Message").inputValue(), "");
  assert.equal(await page.locator(".failed").count(), 0);
  assert.equal(await page.locator(".turn").count(), 6);
  assert.equal(bodies().at(-1).messages.length, 5);
});

for (const scheme of ["light", "dark"]) {
  test(`the page can be read in ${scheme}, at 900 pixels and on a phone`, async () => {
    await page.emulateMedia({ colorScheme: scheme });
    await open();
    await ask("Please think");
    await ended();
    await page.getByLabel("Temperature").fill("7");
    await ask("Hello");
    await ended(2);
    const contrasts = await page.evaluate(contrastsOf, [
      "h1", "h1 span", "#settings label", ".hint", "#send", ".user .text", ".assistant .text", "summary", "footer", ".failure",
    ]);
    for (const [selector, contrast] of contrasts) assert.ok(contrast >= 4.5, `${selector}: ${contrast}`);
    const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(dark === "rgb(20, 22, 27)", scheme === "dark");
    for (const viewport of [DESK, PHONE]) {
      await page.setViewportSize(viewport);
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(width <= viewport.width, `${width} pixels`);
      const inside = await page.locator("#send").boundingBox();
      assert.ok(inside.x + inside.width <= viewport.width && inside.y + inside.height <= viewport.height);
    }
    assert.equal(await page.getByLabel("Temperature").isVisible(), false);
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Temperature").fill("0");
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Message").press("Enter");
    assert.equal((await text(await ended(3))).trim(), GREETING);
  });
}

// WCAG's contrast of each element's text to what lies behind it.
function contrastsOf(selectors) {
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = (color) => {
    const [red, green, blue] = channels(color).map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (node) => {
    const color = getComputedStyle(node).backgroundColor;
    return channels(color)[3] === 0 ? behind(node.parentElement) : color;
  };
  return selectors.map((selector) => {
    const node = document.querySelector(selector);
    const [light, dark] = [getComputedStyle(node).color, behind(node)].map(luminance).sort((a, b) => b - a);
    return [selector, (light + 0.05) / (dark + 0.05)];
  });
}
