// The entry point of the page.

function renderMetrics() {
  const shown = metricsShown();
  if (shown.length && !shown.includes(state.metric)) state.metric = shown[0];
  for (const select of document.querySelectorAll("select.metric"))
    options(select, shown.map((m) => [m, data.metrics[m].label]), state.metric);
}
sections.unshift({ keys: ["study", "metric"], render: renderMetrics });

function listen() {
  const on = (query, event, act) => {
    for (const element of document.querySelectorAll(query))
      element.addEventListener(event, (e) => {
        state.chosen = true;
        act(e.target);
      });
  };
  on("#study", "change", (select) => {
    state.study = select.value;
    settle();
    set({ study: select.value });
  });
  on("select.metric", "change", (select) => set({ metric: Number(select.value), scale: null }));
  on("input[name=scale]", "change", (input) => set({ scale: input.value }));
  on("input[name=dots]", "change", (input) => set({ dots: input.value }));
  on("input[name=seeds]", "change", (input) => set({ seeds: input.value }));
  on("#group", "change", (select) => set({ group: Number(select.value) }));
  on("#single", "change", (select) => {
    const [line, scenario] = select.value.split("/").map(Number);
    set(select.value ? { single: { line, scenario }, line, scenario } : { single: null });
  });
  on("select.line", "change", (select) => set({ line: Number(select.value) }));
  on("select.scenario", "change", (select) => set({ scenario: Number(select.value) }));
  on("select.seed", "change", (select) => set({ seed: Number(select.value) }));
  on("#round", "input", (slider) => set({ frame: Number(slider.value) }));
  on("#play", "click", play);
  on("#theme", "click", () => theme(isDark() ? "light" : "dark"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(null));
  let width = innerWidth;
  let waiting = null;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // on phones, scrolling changes only the height
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(renderAll, 120);
  });
}

function theme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  nameTheme();
  set({ theme: chosen });
}

function nameTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Change to ${isDark() ? "light" : "dark"} colours`);
}

// A live page requests updates until the run is done.
const POLL = 1500;
async function follow() {
  let picture = "";
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, POLL));
    let answer;
    try {
      answer = await fetch(`data?after=${encodeURIComponent(picture)}`, { cache: "no-store" });
    } catch {
      byId("live-text").textContent = "The run no longer answers; these are its last known results.";
      return;
    }
    if (answer.status !== 200) continue;
    picture = answer.headers.get("x-picture") ?? "";
    take(await unpacked(await answer.json()));
    if (!playing) renderAll();
    renderProgress();
    if (data.progress.done) return;
  }
}

function renderProgress() {
  byId("live").hidden = !data.progress;
  if (!data.progress) return;
  byId("live-share").value = data.progress.share;
  byId("live-text").textContent = data.progress.text;
}

async function start() {
  document.body.append(probe);
  const [tree] = await Promise.all([unpacked(JSON.parse(byId("data").textContent)), loadPlotly()]);
  take(tree);
  listen();
  nameTheme();
  renderAll();
  renderProgress();
  document.documentElement.dataset.ready = "true";
  if (data.progress && !data.progress.done) follow();
}

start().catch((error) => {
  byId("about").textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2024 or later.`;
  throw error;
});
