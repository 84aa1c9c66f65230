// Shared by all sections: the data, the choices of the reader, and the format of text and colours.

let data = null;
let cellsByPlace = new Map();

const state = {
  study: null, // which study's runs are shown
  metric: 0,
  scale: null, // "linear" or "log"; null is the default of the metric
  seeds: "pooled",
  dots: "finals", // for every seed: the mean over agents, or the worst agent ("worsts")
  group: 0, // 0 is all agents
  hidden: new Set(), // labels of lines that are not drawn
  single: null, // {line, scenario} whose agents are drawn one by one
  line: 0,
  scenario: 0,
  seed: 0,
  frame: Infinity, // the last frame by default
  agent: null,
  sort: { by: null, up: false },
  chosen: false, // whether the reader has chosen anything; until then a live page updates its choices with new data
};

const sections = []; // {keys, render}: render is called when one of the keys has changed

function set(changes) {
  Object.assign(state, changes);
  if ("line" in changes || "scenario" in changes) state.seed = Math.min(state.seed, seedsTold() - 1);
  const names = Object.keys(changes);
  for (const section of sections) if (section.keys.some((key) => names.includes(key))) section.render();
}

function renderAll() {
  for (const section of sections) section.render();
}

const byId = (id) => document.getElementById(id);

// Creates an element. Strings are inserted as text, never as markup.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function options(select, entries, chosen) {
  select.replaceChildren(
    ...entries.map(([value, text]) => {
      const option = make("option", { value }, text);
      option.selected = String(value) === String(chosen);
      return option;
    }),
  );
}

// Data.

function take(tree) {
  data = tree;
  cellsByPlace = new Map(tree.cells.map((cell) => [`${cell.line}/${cell.scenario}`, cell]));
  const studies = [...new Set(tree.runs.map((run) => run.study))];
  if (!studies.includes(state.study)) state.study = studies[0] ?? null;
  else if (state.chosen) return;
  settle();
}

const studies = () => [...new Set(data.runs.map((run) => run.study))];
const runOf = (line) => data.runs[data.lines[line].run];
const cellAt = (line, scenario) => cellsByPlace.get(`${line}/${scenario}`);
const indices = (list, wanted) => list.map((_, i) => i).filter((i) => wanted(list[i]));
const runsShown = () => indices(data.runs, (run) => run.study === state.study);
const linesShown = () => indices(data.lines, (line) => data.runs[line.run].study === state.study);
const scenariosShown = () => indices(data.scenarios, (scenario) => scenario.study === state.study);
const metricsShown = () =>
  indices(data.metrics, () => true).filter((m) =>
    linesShown().some((l) => scenariosShown().some((s) => known(cellAt(l, s), m))),
  );
const known = (cell, metric) => Boolean(cell && (cell.entries[metric] || (cell.curves && cell.curves[metric])));
const current = () => cellAt(state.line, state.scenario);
const seedsTold = () => (data.lines.length && runOf(state.line).network?.seeds) || 1;

// k is an index into the list of agents on the page. Only in very large networks some agents are not in this list.
const isByzantine = (cell, seed, agent) => cell.byzantine[seed * runOf(cell.line).network.size + agent] === 1;
const groupOf = (network, seed, k) => (network.group ? network.group[seed * network.agents.length + k] : 0);
function agentName(network, seed, k) {
  const group = network.groups.length ? `, group ${network.groups[groupOf(network, seed, k)]}` : "";
  return `agent ${network.agents[k]}${group}`;
}

// The initial choices for a study: its main metric, and the rule and scenario in which trust is most interesting.
function settle() {
  const runs = runsShown();
  if (!runs.length) return;
  state.metric = data.runs[runs[0]].headline;
  state.agent = null;
  state.single = null;
  const lines = linesShown();
  const scenarios = scenariosShown();
  state.line = lines.find((l) => data.lines[l].rule === "loss-based") ?? lines[lines.length - 1];
  const size = runOf(state.line).network?.size ?? Infinity;
  const count = (s) => data.scenarios[s].byzantine;
  const minority = scenarios.filter((s) => 2 * count(s) < size && cellAt(state.line, s));
  state.scenario = minority.reduce((best, s) => (count(s) > count(best) ? s : best), minority[0] ?? scenarios[0]);
}

// Words and numbers.

function formatted(value, metric) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (metric !== undefined && data.metrics[metric].percent) return `${(100 * value).toFixed(1)} %`;
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return Math.abs(value) < 1 ? value.toFixed(4) : String(Number(value.toPrecision(4)));
}

// Plotly interprets some markup and %{…} in texts, so both must be escaped in names.
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "%": "&#37;" };
const plain = (text) => String(text).replace(/[&<>%]/g, (letter) => ENTITIES[letter]);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const capital = (word) => word[0].toUpperCase() + word.slice(1);

// Colours.

const probe = make("span", { hidden: "" });
function colour(variable) {
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}
function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
const ON_DARK = { "#000000": "#f2f2f2", "#882255": "#a88cff" }; // these are too dark on a dark background
const seen = (hex) => (isDark() && ON_DARK[hex]) || hex;
const faded = (hex, alpha) => {
  const part = (at) => parseInt(hex.slice(at, at + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
};
function groupColour(group, count) {
  const colours = data.groupColours;
  if (count <= colours.length) return seen(colours[group]);
  return `hsl(${Math.round((300 * group) / count)} 55% ${isDark() ? 62 : 45}%)`;
}

// Plots.

function axis(extra = {}) {
  const look = { gridcolor: colour("--grid"), linecolor: colour("--soft"), zeroline: false, ticks: "", automargin: true };
  const title = extra.title && { font: { size: 13 }, ...extra.title };
  return { ...look, tickfont: { size: 12 }, ...extra, title };
}

const scaleOf = (metric) => state.scale ?? (data.metrics[metric].log ? "log" : "linear");

// The smallest and the largest of some lists of numbers, among those that the scale can show.
function extremes(lists, scale) {
  let [low, high] = [Infinity, -Infinity];
  for (const values of lists)
    for (const value of values)
      if (Number.isFinite(value) && (scale !== "log" || value > 0)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
  return { low, high };
}

// The axis of a metric, for values from `low` to `high`.
function valueAxis(metric, { low, high }) {
  const { label, percent } = data.metrics[metric];
  const scale = scaleOf(metric);
  const look = { type: scale, title: { text: label, standoff: 8 }, exponentformat: "power" };
  if (percent) look.tickformat = ".0%";
  return scale === "log" && low <= high ? { ...look, ...logTicks(low, high, percent) } : look;
}

// Ticks of a logarithmic axis: whole decades, or some round numbers if there are too few decades.
function logTicks(low, high, percent) {
  const decades = Math.log10(high / low);
  if (decades > 1.6) return { dtick: Math.max(1, Math.ceil(decades / 5)) };
  const many = decades > 0.3 ? [1, 1.5, 2, 3, 4, 5, 7] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
  const round = decades > 0.8 ? [1, 2, 5] : many;
  const tickvals = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.log10(high) + 1; power++)
    tickvals.push(...round.map((digit) => Number((digit * 10 ** power).toPrecision(2))));
  const text = (value) => (percent ? `${Number((100 * value).toPrecision(2))}%` : String(value));
  return { tickvals, ticktext: tickvals.map(text) };
}

// Draws a plot with an alternative text. `clicked` is called with each point that is clicked.
async function draw(id, traces, layout, alternative, clicked = null) {
  const element = byId(id);
  const ink = colour("--ink");
  const base = {
    paper_bgcolor: colour("--paper"),
    plot_bgcolor: colour("--paper"),
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
    hoverlabel: { bgcolor: colour("--wash"), bordercolor: colour("--line"), font: { color: ink }, align: "left" },
    margin: { l: 10, r: 10, t: 10, b: 10 },
    showlegend: false,
    hovermode: "closest",
    width: element.clientWidth,
  };
  element.setAttribute("aria-label", alternative);
  const plot = await Plotly.react(element, traces, { ...base, ...layout }, {
    displaylogo: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
    toImageButtonOptions: { format: "png", scale: 3, filename: id },
  });
  plot.removeAllListeners("plotly_click");
  if (clicked) plot.on("plotly_click", (event) => clicked(event.points[0]));
}

function erase(id) {
  if (byId(id).data) Plotly.purge(byId(id));
}

// A grid of panels with the same axis ranges, with as many columns as fit.
function panels(id, titles, height, x = {}, y = {}) {
  const width = byId(id).clientWidth;
  const columns = Math.max(1, Math.min(titles.length, Math.floor(width / 300)));
  const rows = Math.ceil(titles.length / columns);
  // The toolbar appears at the top; below it there is room for the titles.
  const layout = { annotations: [], margin: { l: 10, r: 14, t: 56, b: 10 }, height: rows * height + 52 };
  const apart = 26 / width;
  const between = 74 / layout.height;
  const wide = (1 - apart * (columns - 1)) / columns;
  const high = (1 - between * (rows - 1)) / rows;
  titles.forEach((title, i) => {
    const [row, column] = [Math.floor(i / columns), i % columns];
    const name = i ? String(i + 1) : "";
    const left = column * (wide + apart);
    const top = 1 - row * (high + between);
    const below = i + columns >= titles.length;
    const matched = (to) => (i ? to : undefined);
    layout[`xaxis${name}`] = axis({
      ...x,
      domain: [left, left + wide],
      anchor: `y${name}`,
      matches: matched("x"),
      title: below ? x.title : undefined,
    });
    layout[`yaxis${name}`] = axis({
      ...y,
      domain: [Math.max(0, top - high), top],
      anchor: `x${name}`,
      matches: matched("y"),
      showticklabels: column === 0,
      title: column === 0 ? y.title : undefined,
    });
    layout.annotations.push({
      // In a single narrow panel, the title fits only at the left, above the labels.
      text: plain(title), x: width > 600 ? left + wide / 2 : 1, y: top, xref: "paper", yref: "paper",
      xanchor: width > 600 ? "center" : "right",
      yanchor: "bottom", yshift: 6, showarrow: false, font: { size: 13.5 },
    });
  });
  return layout;
}

const onPanel = (i) => (i ? { xaxis: `x${i + 1}`, yaxis: `y${i + 1}` } : { xaxis: "x", yaxis: "y" });

function swatch(line) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", "30");
  svg.setAttribute("height", "10");
  svg.setAttribute("aria-hidden", "true");
  const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const dashes = line.dash === "solid" ? "none" : line.dash.replaceAll("px", "");
  const look = { stroke: seen(line.colour), "stroke-width": 2.5, "stroke-dasharray": dashes };
  for (const [name, value] of Object.entries({ x1: 0, y1: 5, x2: 30, y2: 5, ...look })) stroke.setAttribute(name, value);
  svg.append(stroke);
  return svg;
}

// A section without data says why it is empty. If no run of a study has data for it, the section is hidden.
function missing(section, reason) {
  const place = byId(section);
  if (!data.runs.length) reason = "Nothing has been measured yet.";
  const tables = data.runs.length > 0 && runsShown().every((r) => !data.runs[r].network);
  place.hidden = tables;
  document.querySelector(`nav a[href='#${section}']`).hidden = tables;
  place.querySelector(".missing").textContent = reason ?? "";
  place.querySelector(".missing").hidden = !reason;
  place.querySelector(".body").hidden = Boolean(reason);
  return Boolean(reason);
}
