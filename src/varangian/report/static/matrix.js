// The weights as a matrix: receivers are rows, senders are columns. Normal agents come by group, then Byzantine agents.

function drawMatrix(cell, network, edges, full) {
  const byzantine = (agent) => isByzantine(cell, state.seed, agent);
  const group = (agent) => groupOf(network, state.seed, agent);
  const senders = Array.from({ length: network.size }, (_, agent) => agent);
  senders.sort((a, b) => byzantine(a) - byzantine(b) || group(a) - group(b) || a - b);
  const receivers = senders.filter((agent) => !byzantine(agent));
  const round = cell.weights.rounds[frameNow()];
  const honest = (agent) => (network.groups.length ? `group ${network.groups[group(agent)]}` : "normal");
  const name = (agent) => (byzantine(agent) ? "Byzantine" : honest(agent));
  const blocks = blocksOf(senders, name);
  const rows = blocks.filter((block) => block.start < receivers.length);
  const bottom = receivers.length - 0.5;
  const ticks = (some) => ({
    tickvals: some.map((block) => (block.start + block.end) / 2),
    ticktext: some.map((block) => plain(block.name)),
    showgrid: false,
  });
  const across = { ...ticks(blocks), title: { text: "sender", standoff: 6 }, range: [-0.5, senders.length - 0.5] };
  const down = { ...ticks(rows), title: { text: "receiver", standoff: 4 }, range: [bottom, -0.5], tickangle: -90 };
  const layout = {
    height: Math.min(byId("matrix").clientWidth, 560),
    margin: { l: 8, r: 4, t: 30, b: 8 },
    shapes: rulesBetween(blocks, bottom, senders.length - 0.5),
    xaxis: axis(across),
    yaxis: axis(down),
  };
  byId("matrix-note").textContent = whomTheyTrust(network, edges, byzantine, receivers.length);
  const alternative = `Weights at round ${round}, sorted by group. ${byId("matrix-note").textContent}`;
  const traces = matrixTraces(edges, receivers, senders, byzantine, full);
  draw("matrix", traces, layout, alternative, (point) => chooseAgent(receivers[Math.round(point.y)]));
}

// Weights from Byzantine senders have a separate colour, and separate columns.
function matrixTraces(edges, receivers, senders, byzantine, full) {
  const place = new Map(senders.map((agent, i) => [agent, i]));
  const blank = () => receivers.map(() => senders.map(() => null));
  const [honest, fromByzantine, text] = [blank(), blank(), blank()];
  for (const { receiver, sender, weight } of edges) {
    const [row, column] = [place.get(receiver), place.get(sender)];
    (byzantine(sender) ? fromByzantine : honest)[row][column] = weight;
    const whom = receiver === sender ? "itself" : `agent ${sender}${byzantine(sender) ? " (Byzantine)" : ""}`;
    text[row][column] = `agent ${receiver} gives ${whom}<br>${formatted(weight)}`;
  }
  const gap = senders.length <= 40 ? 1 : 0;
  const shared = { type: "heatmap", text, hovertemplate: "%{text}<extra></extra>", hoverongaps: false };
  Object.assign(shared, { zmin: 0, zmax: full, xgap: gap, ygap: gap, meta: { receivers, senders } });
  const blue = isDark() ? ["#1c222a", "#2b6f9f", "#9ad7ff"] : ["#eef2f6", "#5aa5d6", "#04395e"];
  const red = isDark() ? ["#1c222a", "#a84300", "#ffb27d"] : ["#f8efe9", "#f08a4b", "#8a2f00"];
  const scale = (three) => three.map((hex, i) => [i / 2, hex]);
  const colorbar = { thickness: 10, len: 0.6, outlinewidth: 0, tickfont: { size: 11 }, nticks: 5 };
  colorbar.title = { text: "weight" };
  return [
    { ...shared, name: "from normal senders", z: honest, colorscale: scale(blue), colorbar },
    { ...shared, name: "from Byzantine senders", z: fromByzantine, colorscale: scale(red), showscale: false },
  ];
}

// Groups adjacent entries of the list that have the same name.
function blocksOf(agents, nameOf) {
  const blocks = [];
  agents.forEach((agent, i) => {
    const name = nameOf(agent);
    if (blocks.at(-1)?.name === name) blocks.at(-1).end = i;
    else blocks.push({ name, start: i, end: i });
  });
  return blocks;
}

function rulesBetween(blocks, bottom, right) {
  const line = { type: "line", line: { color: colour("--soft"), width: 1 } };
  return blocks.slice(1).flatMap(({ start }) => {
    const at = start - 0.5;
    const upright = { ...line, x0: at, x1: at, y0: -0.5, y1: bottom };
    return at < bottom ? [upright, { ...line, x0: -0.5, x1: right, y0: at, y1: at }] : [upright];
  });
}

function whomTheyTrust(network, edges, byzantine, count) {
  const group = (agent) => groupOf(network, state.seed, agent);
  const shares = { own: 0, same: 0, other: 0, byzantine: 0 };
  for (const { receiver, sender, weight } of edges) {
    const normal = group(sender) === group(receiver) ? "same" : "other";
    shares[receiver === sender ? "own" : byzantine(sender) ? "byzantine" : normal] += weight / count;
  }
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const others = network.groups.length
    ? `neighbours of the same group ${percent(shares.same)}, of other groups ${percent(shares.other)}`
    : `normal neighbours ${percent(shares.same)}`;
  const [own, byzantineShare] = [percent(shares.own), percent(shares.byzantine)];
  return `Mean weights of normal agents: themselves ${own}, ${others}, Byzantine ${byzantineShare}.`;
}
