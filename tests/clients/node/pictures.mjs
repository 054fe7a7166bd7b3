// pictures.mjs URL FOLDER: the playground of a frontend, on a desk in light and on a phone in dark.
import { join } from "node:path";
import { openBrowser } from "./browser.mjs";

// The tiny model knows no tools: what it may write as a place is short.
const WEATHER = {
  name: "weather",
  parameters: {
    type: "object",
    properties: { place: { enum: ["Basel", "Bern"] } },
    required: ["place"],
    additionalProperties: false,
  },
};
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
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("A list of tools").fill(JSON.stringify([{ type: "function", function: WEATHER }]));
  await page.getByLabel("Tool choice").selectOption("required");
  await page.getByRole("button", { name: "Settings" }).click();
  const turn = await ask(page, "How warm is it in Bern?");
  await turn.getByText("Trace", { exact: true }).click();
});
