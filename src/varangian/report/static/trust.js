// The weights between agents, round by round; drawn by network.js and matrix.js.

const GRAPH = 100; // with more agents than this, readers cannot follow single edges
let playing = null;

function renderTrust() {
  renderChoices();
  const cell = current();
  const network = data.lines.length ? runOf(state.line).network : null;
  const gone = network ? null : "Only summary tables are left of this run: weights need metrics.nc.";
  if (missing("trust", gone)) return stop();
  const reason = noWeights(cell, network);
  byId("no-weights").textContent = reason ?? "";
  byId("no-weights").hidden = !reason;
  document.querySelector(".weights").hidden = Boolean(reason);
  if (reason) return stop();
  const { rounds } = cell.weights;
  const frame = frameNow();
  const slider = byId("round");
  slider.max = rounds.length - 1;
  slider.value = frame;
  slider.setAttribute("aria-valuetext", `round ${rounds[frame]}`);
  byId("round-shown").textContent = `${rounds[frame]} of ${rounds.at(-1)}`;
  const edges = edgesAt(cell, network, frame);
  const full = heaviest(cell, network);
  byId("network-figure").hidden = network.size > GRAPH;
  if (network.size <= GRAPH) drawNetwork(cell, network, edges, full);
  drawMatrix(cell, network, edges, full);
  byId("trust-note").textContent = trustNote(cell.weights, network);
}

function noWeights(cell, network) {
  if (!cell) return "This rule was not run in this scenario.";
  if (!network.sender)
    return "Weights were not kept: the network is too large or changes over time, or no rule here has weights.";
  if (!cell.weights) return `Weights of ${data.lines[cell.line].label} are not known: it combines models in another way.`;
  const own = cell.byzantine.subarray(state.seed * network.size, (state.seed + 1) * network.size);
  return own.includes(0) ? null : "All agents are Byzantine, so there are no weights of normal agents.";
}

function trustNote(weights, network) {
  const seeds = runOf(state.line).seeds.length;
  const kept = weights.rounds.length < weights.recorded ? ` of the ${weights.recorded} that the run recorded` : "";
  const rounds = `${weights.rounds.length} rounds${kept}`;
  const parts = [`Weights are shown at ${rounds}, including the first and the last.`];
  if (network.seeds < seeds) parts.push(`This page has the weights of ${plural(network.seeds, "seed")} of ${seeds}.`);
  if (network.size > GRAPH) parts.push(`With more than ${GRAPH} agents, only the matrix is shown.`);
  return parts.join(" ");
}

// The sections on trust and on agents share the choice of rule, scenario and seed.
function renderChoices() {
  const lines = linesShown();
  const scenarios = scenariosShown().filter((s) => cellAt(state.line, s));
  if (scenarios.length && !scenarios.includes(state.scenario)) state.scenario = scenarios[0];
  for (const select of document.querySelectorAll("select.line"))
    options(select, lines.map((l) => [l, data.lines[l].label]), state.line);
  for (const select of document.querySelectorAll("select.scenario"))
    options(select, scenarios.map((s) => [s, data.scenarios[s].title]), state.scenario);
  const count = seedsTold();
  const seeds = current()?.seeds ?? [];
  for (const choice of document.querySelectorAll(".seed-choice")) choice.hidden = count < 2;
  for (const select of document.querySelectorAll("select.seed"))
    options(select, Array.from({ length: count }, (_, i) => [i, seeds[i] ?? i]), state.seed);
}

const frameNow = () => Math.min(state.frame, (current()?.weights?.rounds.length ?? 1) - 1);

// The weights of one round: {receiver, sender, weight} for every neighbour and for the agent itself.
function edgesAt(cell, network, frame) {
  const { size, slots, seeds } = network;
  const block = size * slots;
  const senders = network.sender.subarray(state.seed * block, (state.seed + 1) * block);
  const start = (cell.weights.frame[frame] * seeds + state.seed) * block;
  const edges = [];
  for (let receiver = 0; receiver < size; receiver++) {
    if (isByzantine(cell, state.seed, receiver)) continue; // follows no rule
    for (let slot = 0; slot < slots; slot++) {
      const sender = senders[receiver * slots + slot];
      if (sender < 0 || (slot > 0 && sender === receiver)) continue; // an empty slot
      edges.push({ receiver, sender, weight: cell.weights.values[start + receiver * slots + slot] });
    }
  }
  return edges;
}

// The weight with full width: the 95th percentile of all weights of neighbours in all rounds, so rounds are comparable.
const heaviestOf = new WeakMap();
function heaviest(cell, network) {
  const known = heaviestOf.get(cell) ?? new Map();
  heaviestOf.set(cell, known);
  if (!known.has(state.seed)) {
    const frames = cell.weights.rounds.length;
    const given = [];
    for (let frame = 0; frame < frames; frame += Math.ceil(frames / 8))
      for (const edge of edgesAt(cell, network, frame))
        if (edge.receiver !== edge.sender && edge.weight > 0) given.push(edge.weight);
    given.sort((a, b) => a - b);
    known.set(state.seed, given.length ? given[Math.floor(0.95 * (given.length - 1))] : 1);
  }
  return known.get(state.seed);
}

function play() {
  if (playing) return stop();
  if (frameNow() >= current().weights.rounds.length - 1) set({ frame: 0 });
  byId("play").textContent = "Pause";
  playing = setInterval(() => {
    set({ frame: frameNow() + 1 });
    if (frameNow() >= current().weights.rounds.length - 1) stop();
  }, 550);
}

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = "Play";
}

sections.push({ keys: ["study", "theme", "line", "scenario", "seed", "frame", "agent"], render: renderTrust });
