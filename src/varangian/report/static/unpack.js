// Reads the data of the page: JSON followed by its compressed arrays, and the plotting library.

async function inflated(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Bytes are grouped by significance: first the lowest bytes of all numbers, last the highest.
async function unpacked(payload) {
  const planes = new Uint8Array(await inflated(payload.numbers));
  const count = planes.length / 4;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < 4; plane++)
    for (let i = 0; i < count; i++) bytes[4 * i + plane] = planes[plane * count + i];
  const view = new DataView(bytes.buffer);
  const numbers = new Float32Array(count);
  for (let i = 0; i < count; i++) numbers[i] = view.getFloat32(4 * i, true);
  const filled = (node) => {
    if (node === null || typeof node !== "object") return node;
    if (Array.isArray(node)) return node.map(filled);
    if (Array.isArray(node.$)) return numbers.subarray(node.$[0], node.$[0] + node.$[1]);
    return Object.fromEntries(Object.entries(node).map(([name, value]) => [name, filled(value)]));
  };
  return filled(payload.tree);
}

async function loadPlotly() {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await inflated(document.getElementById("plotly").textContent));
  document.head.append(script);
}
