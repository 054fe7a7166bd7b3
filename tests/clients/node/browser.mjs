// Chromium, which scripts/set_up_chromium.sh finds or brings: CHROMIUM is its command.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

// A browser with a fresh profile: playwright's `context`, and what closes it. `options` are
// playwright's, for its pages.
export async function openBrowser(options = {}) {
  const profile = await mkdtemp(join(tmpdir(), "chromium-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM,
    headless: true,
    args: FLAGS,
    ...options,
  });
  const close = async () => {
    await context.close();
    await rm(profile, { recursive: true, force: true, maxRetries: 20 }); // it may still be written to
  };
  return { context, close };
}
