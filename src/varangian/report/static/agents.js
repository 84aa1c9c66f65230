// The table of all agents at the end, and the details of one agent.

let refocus = null; // the column title that was pressed: the table is made again, and the keyboard focus should stay

function renderAgents() {
  const network = data.lines.length ? runOf(state.line).network : null;
  const reason = network ? null : "Only summary tables are left of this run: single agents need metrics.nc.";
  if (missing("agents", reason)) return;
  const cell = current();
  if (!cell?.agentEnds) return byId("agent-table").replaceChildren();
  const columns = agentColumns(cell, network);
  const sort = columns.some((column) => column.key === state.sort.by) ? state.sort : usualSort(columns);
  const rows = sorted(columns, sort, network.agents.length);
  const caption = make("caption", { class: "sr" }, "Agents at the end of the run; press a column's head to sort by it");
  const head = make("thead", {}, make("tr", {}, ...columns.map((column) => sortable(column, sort))));
  const body = make("tbody", {}, ...rows.map((k) => agentRow(k, columns, cell, network)));
  const place = byId("agent-table");
  const scrolled = place.scrollTop;
  place.replaceChildren(make("table", {}, caption, head, body));
  place.scrollTop = scrolled;
  if (refocus !== null) place.querySelector(`button[data-key="${CSS.escape(refocus)}"]`)?.focus();
  refocus = null;
  const [listed, all] = [network.agents.length, network.size];
  const worst = listed < all ? `The worst ${listed} of ${all} agents, over all rules and scenarios. ` : "";
  const when = "Means over the last fifth of the rounds, or the last evaluation on held-out data.";
  byId("agents-note").textContent = worst + when;
}

// The metric of the page comes first, metrics on training data come last.
function agentColumns(cell, network) {
  const columns = [{ key: "agent", label: "Agent", value: (k) => network.agents[k] }];
  if (network.groups.length) {
    const value = (k) => groupOf(network, state.seed, k);
    columns.push({ key: "group", label: "Group", value, text: (k) => network.groups[value(k)] });
  }
  const rank = (m) => (m === runOf(state.line).headline ? 0 : data.metrics[m].name.startsWith("train_") ? 2 : 1);
  const metrics = [...cell.agentEnds.keys()].filter((m) => cell.agentEnds[m]);
  for (const metric of metrics.sort((a, b) => rank(a) - rank(b) || a - b)) {
    const { name, label } = data.metrics[metric];
    const value = (k) => cell.agentEnds[metric][state.seed * network.agents.length + k];
    const text = (k) => (name === "kept" && !Number.isNaN(value(k)) ? value(k).toFixed(1) : formatted(value(k), metric));
    columns.push({ key: name, metric, label, value, text });
  }
  return columns;
}

// The worst first.
function usualSort(columns) {
  const column = columns.find((column) => column.metric === state.metric) ?? columns[0];
  return { by: column.key, up: column.metric !== undefined && data.metrics[column.metric].better > 0 };
}

// Agents without a number always come last, in both sort orders.
function sorted(columns, sort, count) {
  const column = columns.find((column) => column.key === sort.by);
  const values = Array.from({ length: count }, (_, k) => column.value(k));
  const sign = sort.up ? 1 : -1;
  return Array.from(values.keys()).sort(
    (a, b) => Number.isNaN(values[a]) - Number.isNaN(values[b]) || sign * (values[a] - values[b]) || a - b,
  );
}

function sortable(column, sort) {
  const chosen = column.key === sort.by;
  const press = () => {
    refocus = column.key;
    set({ sort: { by: column.key, up: chosen ? !sort.up : column.metric === undefined } });
  };
  const button = make("button", { type: "button", "data-key": column.key, onclick: press }, column.label);
  const direction = chosen ? (sort.up ? "ascending" : "descending") : "none";
  return make("th", { scope: "col", "aria-sort": direction }, button);
}

function agentRow(k, columns, cell, network) {
  const agent = network.agents[k];
  const byzantine = isByzantine(cell, state.seed, agent);
  const fill = byzantine ? null : groupColour(groupOf(network, state.seed, k), Math.max(1, network.groups.length));
  const name = make("button", { type: "button", "data-agent": agent }, String(agent));
  const first = make("td", { class: byzantine ? "byzantine" : null }, mark(fill), name, byzantine ? " Byzantine" : "");
  const rest = columns.slice(1).map((column) => make("td", {}, column.text(k)));
  const chosen = agent === state.agent ? "true" : null;
  return make("tr", { "aria-current": chosen, onclick: () => chooseAgent(agent) }, first, ...rest);
}

function chooseAgent(agent, cell) {
  state.chosen = true;
  if (cell) set({ line: cell.line, scenario: cell.scenario, agent });
  else set({ agent: agent === state.agent ? null : agent });
}

// One agent.

function renderAgent() {
  const cell = current();
  const network = data.lines.length ? runOf(state.line).network : null;
  const agent = state.agent ?? worstAgent(cell, network);
  const k = network && agent !== null ? network.agents.indexOf(agent) : -1;
  byId("agent-controls").hidden = k < 0;
  if (k < 0 || !cell?.agentEnds) {
    for (const id of ["agent-about", "agent-trust-note"]) byId(id).textContent = "";
    byId("agent-title").textContent = "No agent to show";
    erase("agent-curves");
    return erase("agent-trust");
  }
  const byzantine = isByzantine(cell, state.seed, agent);
  byId("agent-title").textContent = capital(agentName(network, state.seed, k)) + (byzantine ? ", Byzantine" : "");
  const metric = data.metrics[state.metric].label.toLowerCase();
  const why = state.agent === null ? `The worst by ${metric}; choose another in the table. ` : "";
  byId("agent-about").textContent = `${why}${placeName(cell)}, seed ${cell.seeds[state.seed]}.`;
  drawAgentCurves(k, network, byzantine);
  drawAgentTrust(agent, cell, network, byzantine);
}

// The agent to show while the reader has chosen none.
function worstAgent(cell, network) {
  const ends = cell?.agentEnds?.[state.metric];
  if (!ends) return null;
  const sign = data.metrics[state.metric].better > 0 ? -1 : 1;
  let worst = null;
  for (let k = 0; k < network.agents.length; k++) {
    const value = sign * ends[state.seed * network.agents.length + k];
    if (!Number.isNaN(value) && (worst === null || value > worst.value)) worst = { k, value };
  }
  return worst && network.agents[worst.k];
}

// The curves of one agent under every rule of the run.
function drawAgentCurves(k, network, byzantine) {
  const metric = state.metric;
  const { run } = data.lines[state.line];
  const known = (l) => data.lines[l].run === run && cellAt(l, state.scenario)?.agentCurves?.[metric];
  const lines = linesShown().filter(known);
  if (byzantine || !lines.length) return erase("agent-curves");
  const traces = lines.map((l) => {
    const { time, values } = known(l);
    const line = data.lines[l];
    const start = (state.seed * network.agents.length + k) * time.length;
    const y = values.subarray(start, start + time.length);
    return {
      type: "scatter",
      mode: "lines",
      name: plain(line.label),
      x: time,
      y,
      text: Array.from(time, (at, i) => `<b>${plain(line.label)}</b><br>at ${at}: ${formatted(y[i], metric)}`),
      hovertemplate: "%{text}<extra></extra>",
      line: { color: seen(line.colour), dash: line.dash, width: l === state.line ? 3 : 1.6 },
    };
  });
  const unit = cellAt(lines[0], state.scenario).curves[metric].unit;
  const legend = { orientation: "h", x: 0, y: -0.22, yanchor: "top", font: { size: 11.5 } };
  const layout = {
    height: 270,
    margin: { l: 8, r: 8, t: 30, b: 8 },
    showlegend: true,
    legend: { ...legend, itemclick: false, itemdoubleclick: false },
    xaxis: axis({ title: { text: capital(unit), standoff: 4 }, nticks: 6 }),
    yaxis: axis({ ...valueAxis(metric, extremes(traces.map((trace) => trace.y), scaleOf(metric))), nticks: 6 }),
  };
  const names = lines.map((l) => data.lines[l].label).join(", ");
  draw("agent-curves", traces, layout, `${data.metrics[metric].label} of agent ${network.agents[k]} under ${names}.`);
}

// For a normal agent, the weights it gives. A Byzantine agent follows no rule, so for it the weights others give it.
function drawAgentTrust(agent, cell, network, byzantine) {
  const note = byId("agent-trust-note");
  note.textContent = "";
  if (noWeights(cell, network)) return erase("agent-trust");
  const edges = edgesAt(cell, network, frameNow())
    .filter((edge) => (byzantine ? edge.sender : edge.receiver) === agent)
    .map((edge) => ({ other: byzantine ? edge.receiver : edge.sender, weight: edge.weight }))
    .sort((a, b) => b.weight - a.weight || a.other - b.other);
  if (!edges.length) {
    note.textContent = "No normal agent receives from it.";
    return erase("agent-trust");
  }
  const shown = edges.slice(0, 12).reverse();
  const more = edges.length > shown.length ? ` The ${shown.length} heaviest of ${edges.length}.` : "";
  const round = cell.weights.rounds[frameNow()];
  note.textContent = `At round ${round}, chosen by the slider above; ✕ and stripes are Byzantine.${more}`;
  const groups = Math.max(1, network.groups.length);
  const byzantineOthers = shown.map((edge) => isByzantine(cell, state.seed, edge.other));
  const nameOf = ({ other }, i) => (other === agent ? "itself" : `agent ${other}${byzantineOthers[i] ? " ✕" : ""}`);
  const names = shown.map(nameOf);
  const colourOf = (edge, i) =>
    byzantineOthers[i] ? data.byzantineColour : groupColour(groupOf(network, state.seed, edge.other), groups);
  const trace = {
    type: "bar",
    orientation: "h",
    x: shown.map((edge) => edge.weight),
    y: shown.map((_, i) => i),
    text: shown.map((edge, i) => `${names[i]}${byzantineOthers[i] ? ", Byzantine" : ""}: ${formatted(edge.weight)}`),
    textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
    customdata: shown.map((edge) => edge.other),
    marker: {
      color: shown.map(colourOf),
      pattern: { shape: byzantineOthers.map((one) => (one ? "/" : "")), fgcolor: colour("--paper") },
    },
  };
  const title = { text: byzantine ? "weight it is given" : "weight it gives", standoff: 4 };
  const layout = {
    height: 92 + 22 * Math.max(2, shown.length),
    margin: { l: 8, r: 8, t: 30, b: 8 },
    bargap: 0.25,
    xaxis: axis({ title, rangemode: "tozero", nticks: 6 }),
    yaxis: axis({ tickvals: trace.y, ticktext: names, showgrid: false }),
  };
  const about = byzantine ? `Agents that trust agent ${agent}` : `Agents that agent ${agent} trusts`;
  draw("agent-trust", [trace], layout, `${about}: ${[...trace.text].reverse().join("; ")}.`);
}

const ofAgents = ["study", "theme", "line", "scenario", "seed", "agent", "metric"];
sections.push({ keys: [...ofAgents, "sort"], render: renderAgents });
sections.push({ keys: [...ofAgents, "scale", "frame"], render: renderAgent });
