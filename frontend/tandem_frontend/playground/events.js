// Server-sent events: the `data` of each, out of the bytes of a response's body. `comment` is told
// each comment between them.

export async function* events(body, comment = () => {}) {
  const reader = body.getReader();
  const decoder = new TextDecoder(); // a character may be split over two pieces
  let line = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (line + decoder.decode(value, { stream: true })).split(/\r?\n/);
      line = lines.pop();
      for (const each of lines) {
        if (each.startsWith("data:")) {
          data.push(each.slice(each[5] === " " ? 6 : 5));
        } else if (each.startsWith(":")) {
          comment(each.slice(each[1] === " " ? 2 : 1));
        } else if (!each && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => {}); // it may have failed already, which its reader was told
  }
}
