// Mean and range of every rule over time, one panel per scenario, and single agents on demand.

function renderCurves() {
  const metric = state.metric;
  const some = data.cells.some((cell) => cell.curves && data.scenarios[cell.scenario].study === state.study);
  if (missing("curves", some ? null : "Only summary tables are left of this study: curves need metrics.nc.")) return;
  const scale = scaleOf(metric);
  for (const input of document.getElementsByName("scale")) input.checked = input.value === scale;
  renderRules();
  renderGroups();
  const lines = linesShown().filter((l) => !state.hidden.has(data.lines[l].label));
  const known = (l, s) => cellAt(l, s)?.curves?.[metric];
  const scenarios = scenariosShown().filter((s) => linesShown().some((l) => known(l, s)));
  const drawn = scenarios.flatMap((s) => lines.filter((l) => known(l, s)).map((l) => curveOf(l, s, metric)));
  const range = rangeOf(drawn, scale, metric);
  const nothing = "Nothing to draw: no rule is chosen, or this was not measured.";
  byId("curves-note").textContent = range ? curvesNote(drawn[0]) : nothing;
  if (!range) return erase("curves-plot");
  const traces = scenarios.flatMap((s, panel) => {
    const here = drawn.filter((curve) => curve.scenario === s);
    const bands = state.seeds === "pooled" ? here.map((curve) => band(curve, panel, range.floor)) : [];
    return [...bands, ...here.flatMap((curve) => strokes(curve, panel))];
  });
  const about = data.metrics[metric];
  const x = { title: { text: capital(drawn[0].unit), standoff: 6 }, nticks: 6 };
  const y = { ...valueAxis(metric, range), range: range.axis };
  const layout = panels("curves-plot", scenarios.map((s) => data.scenarios[s].title), 300, x, y);
  const ends = drawn.map((curve) => `${placeName(curve)}: ${formatted(curve.mean.at(-1), metric)}`);
  const alternative = `${about.label} over ${drawn[0].unit}s. At the end: ${ends.join("; ")}.`;
  draw("curves-plot", traces, layout, alternative, (point) => {
    const place = point.data.meta;
    state.chosen = true;
    if (place) set({ single: place, line: place.line, scenario: place.scenario });
  });
}

const placeName = ({ line, scenario }) => `${data.lines[line].label}, ${data.scenarios[scenario].title}`;

function curveOf(line, scenario, metric) {
  const { time, pooled, seeds, unit, window } = cellAt(line, scenario).curves[metric];
  const { length } = time;
  const row = (values) => (_, i) => values.subarray(i * length, (i + 1) * length);
  const rows = (values) => Array.from({ length: values.length / length }, row(values));
  const [mean, low, high] = rows(pooled[Math.min(state.group, pooled.length - 1)]);
  return { line, scenario, time, unit, window, mean, low, high, each: rows(seeds) };
}

// Limits that keep the curves readable. A logarithmic axis reaches at most a factor of 100 below the lowest line (only
// single lucky agents are below that), and at most eight decades above it (a rule beyond that has diverged).
function rangeOf(drawn, scale, metric) {
  const lines = extremes(drawn.map((curve) => curve.mean), scale);
  const bands = extremes(drawn.flatMap((curve) => [curve.low, curve.high]), scale);
  if (lines.low > lines.high) return null;
  if (scale === "log") {
    const low = Math.max(bands.low, lines.low / 100);
    const high = Math.max(Math.min(bands.high, lines.low * 1e8), low * 10);
    const margin = 0.04 * Math.log10(high / low);
    return { low, high, axis: [Math.log10(low) - margin, Math.log10(high) + margin], floor: low / 10 };
  }
  const high = Math.min(bands.high, lines.high * 3 + 1e-9);
  const margin = 0.05 * (high - bands.low || 1);
  const bottom = data.metrics[metric].percent || bands.low < 0 ? -Infinity : 0;
  return { low: bands.low, high, axis: [Math.max(bottom, bands.low - margin), high + margin], floor: -Infinity };
}

function band(curve, panel, floor) {
  const there = [...curve.time.keys()].filter((i) => Number.isFinite(curve.low[i]) && Number.isFinite(curve.high[i]));
  const back = [...there].reverse();
  const { colour } = data.lines[curve.line];
  const faint = (colour === "#000000" ? 0.07 : 0.13) * Math.min(1, 5 / data.lines.length);
  return {
    type: "scatter",
    mode: "lines",
    hoverinfo: "skip",
    fill: "toself",
    fillcolor: faded(seen(colour), faint),
    line: { width: 0 },
    x: [...there, ...back].map((i) => curve.time[i]),
    y: [...there.map((i) => Math.max(curve.high[i], floor)), ...back.map((i) => Math.max(curve.low[i], floor))],
    ...onPanel(panel),
  };
}

// One line for the mean over seeds, or one line per seed.
function strokes(curve, panel) {
  const line = data.lines[curve.line];
  const { seeds } = cellAt(curve.line, curve.scenario);
  const stroke = (values, head, width, more) => ({
    type: "scatter",
    mode: curve.time.length > 15 ? "lines" : "lines+markers",
    x: curve.time,
    y: values,
    text: Array.from(curve.time, (time, i) => `<b>${head}</b><br>at ${time}: ${formatted(values[i], state.metric)}${more(i)}`),
    hovertemplate: "%{text}<extra></extra>",
    line: { color: seen(line.colour), width, dash: line.dash },
    marker: { size: 5 },
    name: plain(line.label),
    meta: { line: curve.line, scenario: curve.scenario },
    ...onPanel(panel),
  });
  const range = (i) => `<br>agents ${formatted(curve.low[i], state.metric)} to ${formatted(curve.high[i], state.metric)}`;
  if (state.seeds === "pooled") return [stroke(curve.mean, plain(line.label), 2.2, range)];
  return curve.each.map((values, i) => stroke(values, `${plain(line.label)}, seed ${seeds[i]}`, 1.1, () => ""));
}

function curvesNote(curve) {
  const smooth = curve.window ? `, moving mean over ${curve.window} rounds` : "";
  const what =
    state.seeds === "pooled"
      ? "Mean over normal agents and seeds; the band reaches from the best to the worst agent, averaged over seeds"
      : "Mean over normal agents, one line per seed";
  return `${what}${smooth}; drawn at ${plural(curve.time.length, curve.unit)}.`;
}

function renderRules() {
  const place = byId("rules");
  const lines = linesShown().map((l) => data.lines[l]);
  const shown = JSON.stringify(lines.map((line) => [line.label, seen(line.colour)]));
  if (place.dataset.shown === shown) return; // do not replace a checkbox that is in use
  place.dataset.shown = shown;
  const boxes = lines.map((line) => {
    const box = make("input", { type: "checkbox" });
    box.checked = !state.hidden.has(line.label);
    box.addEventListener("change", () => {
      const hidden = new Set(state.hidden);
      if (box.checked) hidden.delete(line.label);
      else hidden.add(line.label);
      set({ hidden });
    });
    return make("label", {}, box, swatch(line), line.label);
  });
  place.replaceChildren(place.querySelector("legend"), ...boxes);
}

function renderGroups() {
  const network = data.runs[runsShown()[0]].network;
  const names = network?.drawnGroups ? network.groups : [];
  byId("group-choice").hidden = !names.length;
  options(byId("group"), [[0, "all"], ...names.map((name, i) => [i + 1, `group ${name}`])], state.group);
}

// Single agents.

function renderSingle() {
  const metric = state.metric;
  const key = ({ line, scenario }) => `${line}/${scenario}`;
  const known = data.cells.filter((cell) => cell.agentCurves && data.scenarios[cell.scenario].study === state.study);
  const choices = known.map((cell) => [key(cell), placeName(cell)]);
  options(byId("single"), [["", "choose …"], ...choices], state.single ? key(state.single) : "");
  const cell = state.single && cellAt(state.single.line, state.single.scenario);
  const curves = cell?.agentCurves?.[metric];
  byId("single-figure").hidden = !curves;
  if (!curves) return erase("single-plot");
  const network = runOf(cell.line).network;
  const seed = Math.min(state.seed, network.seeds - 1);
  const about = data.metrics[metric];
  const traces = singleTraces(cell, network, curves, seed);
  const layout = {
    height: 340,
    margin: { l: 10, r: 14, t: 30, b: 10 },
    xaxis: axis({ title: { text: capital(cell.curves[metric].unit), standoff: 6 }, nticks: 8 }),
    yaxis: axis(valueAxis(metric, extremes(traces.map((trace) => trace.y), scaleOf(metric)))),
  };
  const name = `${placeName(cell)}, seed ${cell.seeds[seed]}`;
  const coloured = network.groups.length ? "; coloured by group" : "";
  byId("single-note").textContent = `Normal agents one by one: ${name}${coloured}. Click one for more.`;
  const clicked = (point) => chooseAgent(point.customdata, cell);
  draw("single-plot", traces, layout, `${about.label} of single agents: ${name}.`, clicked);
}

// All agents of a group are one trace, with gaps between them.
function singleTraces(cell, network, curves, seed) {
  const [agents, length] = [network.agents.length, curves.time.length];
  const groups = Math.max(1, network.groups.length);
  const traces = Array.from({ length: groups }, (_, group) => ({
    type: "scatter",
    mode: "lines",
    x: [],
    y: [],
    text: [],
    customdata: [],
    hovertemplate: "%{text}<extra></extra>",
    line: { color: groupColour(group, groups), width: 1.1 },
    opacity: 0.6,
  }));
  for (let k = 0; k < agents; k++) {
    if (isByzantine(cell, seed, network.agents[k])) continue;
    const trace = traces[groupOf(network, seed, k)];
    const head = `<b>${plain(agentName(network, seed, k))}</b>`;
    for (let i = 0; i < length; i++) {
      const y = curves.values[(seed * agents + k) * length + i];
      trace.x.push(curves.time[i]);
      trace.y.push(y);
      trace.customdata.push(network.agents[k]);
      trace.text.push(`${head}<br>at ${curves.time[i]}: ${formatted(y, state.metric)}`);
    }
    for (const list of [trace.x, trace.y, trace.text, trace.customdata]) list.push(null);
  }
  return traces;
}

sections.push({ keys: ["study", "metric", "theme", "scale", "seeds", "group", "hidden"], render: renderCurves });
sections.push({ keys: ["study", "metric", "theme", "scale", "single", "seed"], render: renderSingle });
