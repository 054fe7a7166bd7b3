// Server-sent events: the `data` of each, out of the bytes of a response's body.

export async function* events(body) {
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
