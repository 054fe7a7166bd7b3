// Parts of the page. Whatever a model or a server wrote goes in as text, never as markup.

const BLOCK = 4096;

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

// A text that grows at its end. Browsers lay out a whole block when its text changes: a long text is
// blocks of some lines each, so that its last lines alone are laid out anew.
export class GrowingText {
  #length = 0;

  constructor(className) {
    this.node = element("div", { className, hidden: true });
    this.#begin();
  }

  // `text`: all of it, of which the node shows a part already.
  show(text) {
    let more = text.slice(this.#length);
    if (!more) return;
    this.node.hidden = false;
    this.#length = text.length;
    for (;;) {
      const from = Math.max(0, BLOCK - this.last.length);
      const end = more.slice(from).search(/[^\n]\n/); // a block must not end with an empty line: it would not show
      if (end < 0) break;
      this.last.appendData(more.slice(0, from + end + 1));
      more = more.slice(from + end + 2);
      this.#begin();
    }
    this.last.appendData(more);
  }

  #begin() {
    this.last = document.createTextNode("");
    this.node.append(element("div", { className: "block" }, this.last));
  }
}

// A button that copies what `textOf` says.
export function copyButton(title, textOf) {
  const button = element("button", { type: "button", className: "small copy", ariaLabel: title }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copy(textOf())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 2e3);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page that came by plain http from another machine has no clipboard.
    const box = element("textarea", { className: "copied", value: text });
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}

export function folded(className, title, ...children) {
  return element("details", { className }, element("summary", {}, title), ...children);
}

export function duration(seconds) {
  return seconds < 1 ? `${(seconds * 1e3).toFixed(1)} ms` : `${seconds.toFixed(2)} s`;
}

export function count(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}
