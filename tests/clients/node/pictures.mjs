// pictures.mjs URL FOLDER NAME...: the playground of a frontend, on a desk in light, on a phone in
// dark, and while an answer waits for workers of one slot each.
import { join } from "node:path";
import { openBrowser } from "./browser.mjs";

const [url, folder, ...names] = process.argv.slice(2);

async function picture(name, options, converse) {
  const { context, close } = await openBrowser(options);
  const page = await context.newPage();
  await page.goto(`${url}/playground`);
  await converse(page);
  await page.screenshot({ path: join(folder, `${name}.png`) });
  await close();
}

async function ask(page, text, number = 1) {
  await page.getByLabel("Message").fill(text);
  await page.getByLabel("Message").press("Enter");
  const turn = page.locator(".turn.assistant[aria-busy=false]").nth(number - 1);
  await turn.waitFor();
  return turn;
}

const pictures = {
  async desk() {
    const options = { colorScheme: "light", viewport: { width: 1180, height: 800 } };
    await picture("desk", options, async (page) => {
      await page.getByLabel("Temperature").fill("0");
      await ask(page, "Hello!");
      const turn = await ask(page, "Tell me about the assert statement.", 2);
      await turn.getByText("Trace", { exact: true }).click();
    });
  },
  async phone() {
    const options = { colorScheme: "dark", viewport: { width: 390, height: 780 } };
    await picture("phone", options, async (page) => {
      const turn = await ask(page, "Hello!");
      await turn.getByText("Trace", { exact: true }).click();
    });
  },
  async waiting() {
    const options = { colorScheme: "light", viewport: { width: 1180, height: 420 } };
    await picture("waiting", options, async (page) => {
      const others = [await page.context().newPage(), await page.context().newPage()];
      for (const each of [...others, page]) {
        if (each !== page) await each.goto(`${url}/playground`);
        await each.getByLabel("Message").fill("Tell me about the assert statement.");
        await each.getByLabel("Message").press("Enter");
        await each.getByText(each === others[0] ? "the" : "no slot is free").first().waitFor();
      }
      await page.getByText("more wait").waitFor();
      await page.bringToFront();
    });
  },
};

for (const name of names) await pictures[name]();
