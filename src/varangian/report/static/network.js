// The network: agents at their positions, or on a circle by group. The width of an edge shows its weight.

const STEPS = 6; // the number of different edge widths
const CROWD = 1500; // with more pairs than this, only pairs with a positive weight are drawn

function drawNetwork(cell, network, edges, full) {
  const byzantine = (agent) => isByzantine(cell, state.seed, agent);
  const at = places(network);
  const neighbours = heaviestPairs(network, edges);
  const shown = [...heaviestPairs(network, edges.filter(isOfChosen(byzantine))).values()].filter((edge) => edge.weight > 0);
  const traces = [lineTrace("neighbours", neighbours.size > CROWD ? [] : neighbours.values(), at, colour("--line"), 0.6)];
  for (const fromByzantine of [false, true])
    for (let step = 1; step <= STEPS; step++) {
      const strength = step / STEPS;
      const same = shown.filter((edge) => byzantine(edge.sender) === fromByzantine && stepOf(edge.weight / full) === step);
      const ink = fromByzantine ? data.byzantineColour : isDark() ? "#dfe6ee" : "#2b3138";
      const name = fromByzantine ? "trusted Byzantine" : "trusted";
      traces.push(lineTrace(name, same, at, faded(ink, 0.15 + 0.75 * strength), 0.4 + 2.4 * strength));
    }
  traces.push(...agentTraces(cell, network, at));
  const bare = { showgrid: false, zeroline: false, showticklabels: false, ticks: "", constrain: "domain" };
  const layout = {
    height: Math.min(byId("network").clientWidth, 560),
    margin: { l: 2, r: 2, t: 30, b: 2 }, // the toolbar at the top must not cover an agent
    dragmode: "pan",
    xaxis: { ...bare, range: reach(at.map((place) => place[0])) },
    yaxis: { ...bare, range: reach(at.map((place) => place[1])), scaleanchor: "x" },
  };
  const kept = edges.filter((edge) => edge.sender !== edge.receiver && edge.weight > 0);
  const round = cell.weights.rounds[frameNow()];
  const fooled = kept.filter((edge) => byzantine(edge.sender)).length;
  const alternative =
    `Network of ${network.size} agents at round ${round}: ${kept.length} edges carry weight, ` +
    `${fooled} of them from Byzantine senders.`;
  draw("network", traces, layout, alternative, (point) => chooseAgent(point.customdata));
  renderKey(network);
}

const stepOf = (strength) => Math.ceil(Math.min(1, strength) * STEPS);

// If an agent is chosen, only the weights it gives; if it is Byzantine, only the weights others give it.
const isOfChosen = (byzantine) => (edge) =>
  state.agent === null || (byzantine(state.agent) ? edge.sender : edge.receiver) === state.agent;

// For each pair of neighbours, the direction with the larger weight.
function heaviestPairs(network, edges) {
  const pairs = new Map();
  for (const edge of edges) {
    if (edge.receiver === edge.sender) continue;
    const key = Math.min(edge.receiver, edge.sender) * network.size + Math.max(edge.receiver, edge.sender);
    if (!pairs.has(key) || edge.weight > pairs.get(key).weight) pairs.set(key, edge);
  }
  return pairs;
}

function lineTrace(name, edges, at, color, width) {
  const [x, y] = [[], []];
  for (const { receiver, sender } of edges) {
    x.push(at[receiver][0], at[sender][0], null);
    y.push(at[receiver][1], at[sender][1], null);
  }
  return { type: "scatter", mode: "lines", hoverinfo: "skip", name, x, y, line: { color, width } };
}

function places(network) {
  const { size, position } = network;
  const agents = Array.from({ length: size }, (_, agent) => agent);
  if (position) return agents.map((agent) => [0, 1].map((i) => position[2 * (state.seed * size + agent) + i]));
  const out = [];
  agents.sort((a, b) => groupOf(network, state.seed, a) - groupOf(network, state.seed, b) || a - b);
  agents.forEach((agent, i) => {
    const angle = (2 * Math.PI * i) / size;
    out[agent] = [Math.sin(angle), Math.cos(angle)];
  });
  return out;
}

function reach(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = 0.06 * (high - low || 1);
  return [low - margin, high + margin];
}

// Normal agents are discs in their group's colour, Byzantine ones crosses with an outline.
function agentTraces(cell, network, at) {
  const kinds = [[], []];
  for (let agent = 0; agent < network.size; agent++)
    kinds[isByzantine(cell, state.seed, agent) ? 1 : 0].push(agent);
  const groups = Math.max(1, network.groups.length);
  const size = Math.max(9, Math.min(17, 160 / Math.sqrt(network.size)));
  const [ink, paper] = [colour("--ink"), colour("--paper")];
  const chosen = (agent) => agent === state.agent;
  return kinds.map((agents, byzantine) => ({
    type: "scatter",
    mode: "markers",
    name: byzantine ? "Byzantine" : "normal",
    x: agents.map((agent) => at[agent][0]),
    y: agents.map((agent) => at[agent][1]),
    customdata: agents,
    text: agents.map((agent) => plain(agentName(network, state.seed, agent)) + (byzantine ? ", Byzantine" : "")),
    hovertemplate: "%{text}<extra></extra>",
    marker: {
      symbol: byzantine ? "x" : "circle",
      size: agents.map((agent) => (chosen(agent) ? 1.5 : 1) * size),
      color: agents.map((agent) =>
        byzantine ? data.byzantineColour : groupColour(groupOf(network, state.seed, agent), groups),
      ),
      opacity: 1,
      line: {
        width: agents.map((agent) => (chosen(agent) ? 2.5 : byzantine ? 1.4 : 1)),
        color: agents.map((agent) => (chosen(agent) || byzantine ? ink : paper)),
      },
    },
  }));
}

function renderKey(network) {
  const count = network.groups.length;
  const named = count > 0 && count <= 12;
  const groups = named ? network.groups.map((name, i) => keyOf(groupColour(i, count), `group ${name}`)) : [];
  const about = "The heavier an edge, the more weight it has; vermilion from a Byzantine sender. ";
  const normal = named ? groups : [keyOf(groupColour(0, 1), "normal")];
  const parts = [...normal, keyOf(null, "Byzantine"), make("span", {}, about)];
  if (state.agent !== null) {
    const all = make("button", { type: "button", onclick: () => set({ agent: null }) }, "Show all");
    parts.push(make("span", {}, `Only edges of agent ${state.agent}. `, all));
  }
  byId("network-note").replaceChildren(...parts);
}

// A coloured disc, or the cross of a Byzantine agent.
function mark(fill) {
  const shape = make("span", { class: fill ? "swatch" : "swatch cross", "aria-hidden": "true" }, fill ? "" : "✕");
  if (fill) shape.style.background = fill;
  return shape;
}

const keyOf = (fill, text) => make("span", { class: "key" }, mark(fill), text);
