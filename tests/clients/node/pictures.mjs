// pictures.mjs URL FOLDER: the playground of a frontend, on a desk in light and on a phone in dark.
import { join } from "node:path";
import { openBrowser } from "./browser.mjs";

const [url, folder] = process.argv.slice(2);

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

await picture("desk", { colorScheme: "light", viewport: { width: 1180, height: 800 } }, async (page) => {
  await page.getByLabel("Temperature").fill("0");
  await ask(page, "Hello!");
  const turn = await ask(page, "Tell me about the assert statement.", 2);
  await turn.getByText("Trace", { exact: true }).click();
});

await picture("phone", { colorScheme: "dark", viewport: { width: 390, height: 780 } }, async (page) => {
  const turn = await ask(page, "Hello!");
  await turn.getByText("Trace", { exact: true }).click();
});
