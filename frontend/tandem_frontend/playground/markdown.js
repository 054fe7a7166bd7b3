// Markdown as parts of a page: paragraphs, headings, lists, quotes, rules, emphasis, code and links.
// All else is text. A line is read once, in a time that grows with its length alone.

import { GrowingText, copyButton, element } from "./elements.js";

const LONGEST_LINE = 4096; // of which markup is looked for; a longer one is cut
const MOST_PARTS = 10_000; // of a page; what follows is plain text
const DEEPEST = 6; // lists in lists, and emphasis in emphasis
const FENCE = /^(\s*)(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const MARKS = /\\[!-/:-@[-`{-~]|`+|\*{1,3}|_{1,3}|~~|\[([^[\]]*)\]\(([^()\s]*)\)|https?:\/\/[^\s<>"'`*[\](){}]+/g;
const EMPHASIS = { 1: ["em"], 2: ["strong"], 3: ["strong", "em"] };

// A text in Markdown that grows at its end.
export class GrowingMarkdown {
  #taken = 0; // characters of whole lines
  #undo = null; // takes away what the last line, which is not whole, shows
  #parts = 0;
  #block = null; // {kind, node}: what the next line may go on with; of code also {fence, indent, text, body}
  #lists = []; // {indent, node}, each in the last item of the one before
  #cut = false; // the line before was cut: what follows belongs to it
  #plain = null; // takes what follows MOST_PARTS

  constructor(className) {
    this.node = element("div", { className, hidden: true });
  }

  // `text`: all of it, of which the node shows a part already.
  show(text) {
    if (text.length) this.node.hidden = false;
    this.#undo?.();
    this.#undo = null;
    while (!this.#plain) {
      const next = text.slice(this.#taken, this.#taken + LONGEST_LINE + 1);
      const end = next.indexOf("\n");
      const cut = end < 0;
      if (cut && next.length <= LONGEST_LINE) break;
      const line = next.slice(0, cut ? LONGEST_LINE : end);
      this.#taken += line.length + (cut ? 0 : 1);
      this.#line(line, cut);
      if (this.#parts > MOST_PARTS) this.#goPlain();
    }
    const rest = text.slice(this.#taken);
    if (this.#plain) this.#plain.show(rest);
    else if (rest) this.#unfinished(rest);
  }

  #goPlain() {
    this.#plain = new GrowingText("plain");
    this.node.append(this.#plain.node);
  }

  // The last line, which may become something else by what comes.
  #unfinished(line) {
    const before = { block: this.#block, lists: [...this.#lists], cut: this.#cut, parts: this.#parts };
    if (before.block?.kind === "code") {
      if (!mayClose(line, before.block)) before.block.body.show(before.block.text + unindented(line, before.block));
      return;
    }
    const added = [];
    this.#append = (parent, ...children) => {
      parent.append(...children);
      added.push(...children);
    };
    this.#line(line, false);
    this.#append = append;
    this.#undo = () => {
      for (const each of added) each.remove();
      this.#block = before.block;
      this.#lists = before.lists;
      this.#cut = before.cut;
      this.#parts = before.parts;
    };
  }

  #append = append;

  // `cut`: the line goes on.
  #line(line, cut) {
    const goesOn = this.#cut;
    this.#cut = cut;
    if (this.#block?.kind === "code") this.#code(line, cut);
    else if (goesOn) this.#addTo(this.#block ?? this.#begin("p"), line);
    else if (!line.trim()) this.#block = null;
    else this.#startOf(line);
    if (line) this.#parts += 1;
  }

  #code(line, cut) {
    const block = this.#block;
    if (closes(line, block)) {
      block.body.show(block.text);
      this.#block = null;
      return;
    }
    block.text += unindented(line, block) + (cut ? "" : "\n");
    block.body.show(block.text);
  }

  #startOf(line) {
    let found;
    if ((found = FENCE.exec(line))) this.#fence(found);
    else if ((found = HEADING.exec(line))) this.#heading(found);
    else if (RULE.test(line)) this.#closed("hr");
    else if ((found = ITEM.exec(line))) this.#item(found);
    else if ((found = QUOTE.exec(line))) this.#goOn("blockquote", found[1]);
    else if (this.#lists.length && /^\s/.test(line)) this.#continueItem(line.trimStart());
    else this.#goOn("p", line);
  }

  #fence([, indent, fence, info]) {
    const language = info.trim().slice(0, 30);
    const body = new GrowingText("code");
    const block = { kind: "code", fence, indent: indent.length, text: "", body };
    const copy = copyButton("Copy code", () => block.text);
    const head = element("header", {}, element("span", {}, language), copy);
    block.node = element("figure", {}, head, element("pre", {}, body.node));
    this.#append(this.#parent(indent.length), block.node);
    this.#parts += 8;
    this.#block = block;
  }

  #heading([, marks, text = ""]) {
    const node = this.#closed(`h${Math.min(6, marks.length + 2)}`);
    node.append(...this.#inline(text.replace(/\s+#+\s*$/, "")));
  }

  // Of `line`s of one kind that follow each other one element.
  #goOn(kind, line) {
    if (this.#block?.kind === kind) this.#addTo(this.#block, `\n${line}`);
    else this.#addTo(this.#begin(kind), line);
  }

  #begin(kind) {
    const node = this.#closed(kind);
    this.#block = { kind, node };
    return this.#block;
  }

  #addTo({ node }, text) {
    this.#append(node, ...this.#inline(text));
  }

  // An element that no line goes on with.
  #closed(name) {
    const node = element(name);
    this.#lists = [];
    this.#append(this.node, node);
    this.#block = null;
    return node;
  }

  // Where a part that stands in so far goes: into the last item of a list, or not.
  #parent(indent) {
    const list = this.#lists.findLast((each) => indent > each.indent);
    if (!list) this.#lists = [];
    return list?.node.lastElementChild ?? this.node;
  }

  #item([, space, mark, text]) {
    const indent = space.replaceAll("\t", "    ").length;
    const name = /\d/.test(mark) ? "ol" : "ul";
    while (this.#lists.length && this.#lists.at(-1).indent > indent) this.#lists.pop();
    let list = this.#lists.at(-1);
    const deeper = !list || (indent > list.indent + 1 && this.#lists.length < DEEPEST);
    if (!deeper && list.node.localName !== name) this.#lists.pop();
    if (deeper || list.node.localName !== name) {
      const parent = this.#lists.at(-1)?.node.lastElementChild ?? this.node;
      list = { indent, node: element(name) };
      if (name === "ol") list.node.start = parseInt(mark, 10);
      this.#append(parent, list.node);
      this.#lists.push(list);
    }
    const item = element("li", {}, ...this.#inline(text));
    this.#append(list.node, item);
    this.#block = { kind: "li", node: item };
  }

  #continueItem(text) {
    const node = this.#lists.at(-1).node.lastElementChild;
    this.#addTo({ node }, this.#block ? `\n${text}` : `\n\n${text}`);
    this.#block = { kind: "li", node };
  }

  #inline(text) {
    const made = inline(text);
    this.#parts += made.length;
    return made;
  }
}

function append(parent, ...children) {
  parent.append(...children);
}

function closes(line, block) {
  return mayClose(line, block) && line.trim().length >= block.fence.length;
}

// Whether a line that is not whole may become the end of the code.
function mayClose(line, { fence }) {
  const bare = line.trim();
  return bare === fence[0].repeat(bare.length);
}

function unindented(line, { indent }) {
  return line.slice(Math.min(indent, /^\s*/.exec(line)[0].length));
}

// The nodes of a line. Marks that have no partner are text.
function inline(text) {
  const tokens = tokensOf(text);
  pair(tokens);
  const root = { nodes: [] };
  const open = [root];
  for (const token of tokens) {
    const here = open.at(-1);
    if (token.opens) {
      open.push({ nodes: [], names: token.opens });
    } else if (token.ends) {
      const { nodes, names } = open.pop();
      const made = names.reduceRight((inner, name) => [element(name, {}, ...inner)], nodes);
      open.at(-1).nodes.push(...made);
    } else {
      here.nodes.push(token.node ?? token.text);
    }
  }
  return root.nodes.map((node) => (typeof node === "string" ? document.createTextNode(node) : node));
}

function tokensOf(text) {
  const tokens = [];
  const ticks = closingTicks(text);
  let from = 0;
  const say = (to) => to > from && tokens.push({ text: text.slice(from, to) });
  MARKS.lastIndex = 0;
  for (let found; (found = MARKS.exec(text)); ) {
    const [mark, label, address] = found;
    const at = found.index;
    const end = at + mark.length;
    let token;
    if (mark[0] === "\\") token = { text: mark[1] };
    else if (mark[0] === "`") token = codeAt(text, at, mark.length, ticks);
    else if (mark[0] === "[") token = link(label, address);
    else if (mark[0] === "h") token = link(...bareLink(mark));
    else token = emphasis(mark, text[at - 1] ?? " ", text[end] ?? " ");
    if (!token) continue;
    say(at);
    tokens.push(token);
    from = token.end ?? end - (token.left ?? 0);
    MARKS.lastIndex = from;
  }
  say(text.length);
  return tokens;
}

// Where runs of backticks are, by their length.
function closingTicks(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) runs.set(run.length, { places: [], next: 0 });
    runs.get(run.length).places.push(index);
  }
  return runs;
}

function codeAt(text, at, length, runs) {
  const run = runs.get(length);
  while (run.places[run.next] <= at) run.next += 1;
  const close = run.places[run.next];
  if (close === undefined) return { text: text.slice(at, at + length) };
  const inside = text.slice(at + length, close);
  const bare = inside.trim() && inside.startsWith(" ") && inside.endsWith(" ") ? inside.slice(1, -1) : inside;
  return { node: element("code", {}, bare), end: close + length };
}

// A link to another site, in a page of its own that knows nothing of this one; null: none of http.
function link(label, address, left = 0) {
  if (!/^https?:\/\/\w/i.test(address)) return null;
  const node = element("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer" }, label || address);
  return { node, left };
}

// A sentence's end is no part of an address: the address twice, and how much was left out.
function bareLink(mark) {
  const address = mark.replace(/[.,:;!?_~]+$/, "");
  return [address, address, mark.length - address.length];
}

function emphasis(mark, before, after) {
  const space = /\s/;
  const word = /[\p{L}\p{N}]/u;
  const inWord = mark[0] === "_" && word.test(before) && word.test(after);
  const names = mark === "~~" ? ["del"] : EMPHASIS[mark.length];
  return { text: mark, names, canOpen: !inWord && !space.test(after), canEnd: !inWord && !space.test(before) };
}

// Give marks `opens` and `ends` where they are a pair. Pairs do not overlap.
function pair(tokens) {
  const open = [];
  for (const token of tokens) {
    if (!token.names) continue;
    const partner = token.canEnd ? open.findLastIndex((each) => each.text === token.text) : -1;
    if (partner >= 0) {
      open[partner].opens = token.names;
      token.ends = true;
      open.length = partner;
    } else if (token.canOpen) {
      open.push(token);
      if (open.length > DEEPEST) open.shift();
    }
  }
}
