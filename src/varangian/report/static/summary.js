// The runs, the commands that repeat them, and the table.

function renderSummary() {
  const runs = runsShown().map((r) => data.runs[r]);
  if (!runs.length) {
    byId("about").textContent = "Nothing has been measured yet.";
    byId("table").replaceChildren();
    return;
  }
  const names = studies();
  byId("study-choice").hidden = names.length < 2;
  options(byId("study"), names.map((name) => [name, name]), state.study);
  byId("title").textContent = state.study;
  byId("about").textContent = aboutRuns(runs);
  byId("finding").textContent = finding();
  byId("tables-only").hidden = runs.some((run) => run.network);
  byId("again").replaceChildren(...runs.map((run) => again(run, runs.length > 1)));
  byId("table").replaceChildren(table());
  byId("published").replaceChildren(...runs.filter((run) => run.published.length).map(published));
}

function aboutRuns(runs) {
  const rules = new Set(linesShown().map((l) => data.lines[l].rule)).size;
  const seeds = Math.max(...runs.map((run) => run.seeds.length));
  const sizes = [...new Set(runs.map((run) => run.network?.size).filter(Boolean))];
  const rounds = [...new Set(runs.map((run) => run.rounds))].join(" or ");
  const seconds = runs.reduce((sum, run) => sum + run.seconds, 0);
  const time = seconds < 90 ? `${Number(seconds.toPrecision(2))} s` : `${Math.round(seconds / 60)} min`;
  const notes = [...new Set(runs.map((run) => run.note).filter(Boolean))];
  const parts = [
    runs.length > 1 ? plural(runs.length, "run") : null,
    plural(rules, "rule"),
    plural(scenariosShown().length, "scenario"),
    plural(seeds, "seed"),
    sizes.length ? `${sizes.join(" or ")} agents` : null,
    `${rounds} rounds`,
    `${time} of computing`,
  ];
  return parts.filter(Boolean).join(" · ") + (seeds > 1 && notes.length ? `. ${notes.join(" ")}` : "");
}

// One sentence that says which rule is best in which scenario. Only for a single run: several runs may differ in more
// than their rules.
function finding() {
  const [lines, scenarios] = [linesShown(), scenariosShown()];
  if (runsShown().length > 1 || lines.length < 2) return "";
  const best = new Map();
  for (const s of scenarios)
    for (const l of lines)
      if (cellAt(l, s)?.entries[state.metric]?.best) best.set(l, [...(best.get(l) ?? []), data.scenarios[s].title]);
  if (!best.size) return "";
  const about = data.metrics[state.metric];
  const word = `${about.better > 0 ? "Highest" : "Lowest"} ${about.label.toLowerCase()}`;
  const [only] = best.keys();
  if (best.size === 1 && scenarios.length > 1) return `${word} in every scenario: ${data.lines[only].label}.`;
  return `${word}: ${[...best].map(([l, titles]) => `${data.lines[l].label} (${titles.join("; ")})`).join(", ")}.`;
}

function again(run, several) {
  const parts = several ? [make("strong", {}, run.name)] : [];
  if (run.command) {
    const button = make("button", { type: "button" }, "Copy");
    button.addEventListener("click", () => copy(run.command, button));
    const code = make("code", { tabindex: "0", "aria-label": "Command that repeats this run" }, run.command);
    parts.push(make("div", { class: "command" }, code, button));
  } else if (!run.config) {
    parts.push(make("p", { class: "note" }, "The command of this run is not recorded."));
  }
  if (run.config) {
    const config = make("pre", { tabindex: "0" }, run.config);
    parts.push(make("details", {}, make("summary", {}, "Configuration"), config));
  }
  return make("div", { class: "run-about" }, ...parts);
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages opened as files may not use the clipboard API: select the text and use the older command.
    const area = make("textarea", {}, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function table() {
  const scenarios = scenariosShown();
  const heads = scenarios.map((s) => make("th", { scope: "col" }, data.scenarios[s].title));
  const body = make("tbody");
  const several = runsShown().length > 1;
  for (const r of runsShown()) {
    if (several) {
      const head = make("th", { scope: "rowgroup", colspan: scenarios.length + 1 }, data.runs[r].name);
      body.append(make("tr", { class: "run" }, head));
    }
    for (const l of linesShown().filter((l) => data.lines[l].run === r)) {
      const name = make("th", { scope: "row" }, swatch(data.lines[l]), data.lines[l].rule);
      body.append(make("tr", {}, name, ...scenarios.map((s) => entry(cellAt(l, s)?.entries[state.metric]))));
    }
  }
  const caption = make("caption", { class: "sr" }, `${data.metrics[state.metric].label} at the end`);
  const head = make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Rule"), ...heads));
  return make("table", {}, caption, head, body);
}

function entry(texts) {
  if (!texts) return make("td", {}, "–");
  const parts = [make("span", { class: "mean" }, texts.mean)];
  if (texts.best) parts.push(make("span", { class: "sr" }, " (best)"));
  if (texts.worst) parts.push(make("small", {}, `worst ${texts.worst}`));
  if (texts.gain) parts.push(make("small", { class: texts.word }, texts.gain, texts.word ? ` ${texts.word}` : ""));
  return make("td", { class: texts.best ? "best" : null }, ...parts);
}

function published(run) {
  const [heads, ...rows] = run.published;
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
  const body = rows.map((row) => make("tr", {}, ...row.map((text) => make("td", {}, text))));
  const shown = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  const title = make("h3", {}, "Comparison with the published numbers");
  return make("div", {}, title, make("div", { class: "scroll", tabindex: "0" }, shown));
}

// Every seed, by rule and scenario.

function renderDots() {
  const metric = state.metric;
  const lines = linesShown();
  const scenarios = scenariosShown().filter((s) => lines.some((l) => cellAt(l, s)?.entries[metric]));
  const what = state.dots === "worsts" ? "the worst normal agent" : "the mean over the normal agents";
  byId("dots-note").textContent = `Each dot is ${what} of one seed, and the bar is the mean over seeds.`;
  if (!scenarios.length) return erase("dots");
  const scale = scaleOf(metric);
  const rows = lines.map((_, i) => lines.length - 1 - i);
  const drawable = (value) => Number.isFinite(value) && (scale !== "log" || value > 0);
  const traces = [];
  const all = []; // the values of all rules and scenarios
  scenarios.forEach((s, panel) => {
    lines.forEach((l, i) => {
      const cell = cellAt(l, s);
      const values = (cell?.[state.dots][metric] ?? []).filter(drawable);
      if (values.length) traces.push(...seedDots(cell, values, rows[i], panel));
      all.push(...values);
    });
  });
  const about = data.metrics[metric];
  const narrow = byId("dots").clientWidth < 600;
  const { low, high } = extremes([all], scale);
  const top = Math.min(high, low * 1e8); // a rule that has diverged further leaves the panel
  const x = { ...valueAxis(metric, { low, high: top }), nticks: narrow ? 4 : 6, tickangle: 0 };
  if (scale === "log") x.range = [Math.log10(low) - 0.15, Math.log10(top) + 0.15];
  const ticktext = lines.map((l) => dotLabel(l, narrow));
  const y = { tickvals: rows, ticktext, range: [-0.6, lines.length - 0.4], fixedrange: true };
  const height = 60 + (narrow ? 36 : 28) * Math.max(2, lines.length);
  const titles = scenarios.map((s) => data.scenarios[s].title);
  const alternative = `${about.label} of every seed, by rule and scenario. The table above has the numbers.`;
  draw("dots", traces, panels("dots", titles, height, x, y), alternative);
}

function seedDots(cell, values, row, panel) {
  const line = data.lines[cell.line];
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const head = `<b>${plain(line.label)}</b><br>`;
  const shared = { type: "scatter", mode: "markers", hovertemplate: "%{text}<extra></extra>", ...onPanel(panel) };
  return [
    {
      ...shared,
      x: values,
      y: values.map(() => row),
      text: values.map((value, k) => `${head}seed ${cell.seeds[k]}: ${formatted(value, state.metric)}`),
      marker: { color: seen(line.colour), size: 8, opacity: 0.65 },
    },
    {
      ...shared,
      x: [mean],
      y: [row],
      text: [`${head}mean ${formatted(mean, state.metric)}`],
      marker: { symbol: "line-ns", size: 16, line: { width: 2.5, color: seen(line.colour) } },
    },
  ];
}

// On a narrow screen, the rule and the run have separate lines, each cut to fit.
function dotLabel(l, narrow) {
  if (!narrow) return plain(data.lines[l].label);
  const short = (text) => (text.length > 20 ? `${text.slice(0, 19)}…` : text);
  const parts = runsShown().length > 1 ? [data.lines[l].rule, runOf(l).name] : [data.lines[l].rule];
  return parts.map((part) => plain(short(part))).join("<br>");
}

sections.push({ keys: ["study", "metric", "theme"], render: renderSummary });
sections.push({ keys: ["study", "metric", "theme", "scale", "dots"], render: renderDots });
