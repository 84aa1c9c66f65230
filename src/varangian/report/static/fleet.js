// The page of a fleet: asks once a second how the agents are, and draws it. Texts of agents never become markup.

const PAUSE = 1000;
const byId = (name) => document.getElementById(name);
const short = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString());

function made(name, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

function row(cells) {
  const line = document.createElement("tr");
  cells.forEach((text, place) => {
    const cell = document.createElement(place === 0 ? "th" : "td");
    if (place === 0) cell.scope = "row";
    cell.textContent = text;
    line.append(cell);
  });
  return line;
}

function drawAgents(fleet) {
  byId("metric").textContent = fleet.metric || "–";
  byId("agent-rows").replaceChildren(
    ...fleet.agents.map((agent) => {
      const name = agent.byzantine ? `${agent.name} (Byzantine)` : agent.name;
      if (agent.round === null) return row([name, agent.byzantine ? "" : "no answer", "", "", "", "", ""]);
      const weights = agent.weights || {};
      const trusted = Object.keys(weights).filter((other) => other !== agent.name && weights[other] > 0);
      const own = agent.weights ? short(weights[agent.name] ?? 0) : "–";
      const trusts = agent.weights ? `${trusted.length}: ${trusted.join(", ")}` : "–";
      const heard = `${Object.keys(agent.ages).length}`;
      return row([name, `${agent.round}`, short(agent.loss), short(agent.value), own, trusts, heard]);
    }),
  );
}

function drawNetwork(fleet) {
  const size = 640, middle = size / 2, radius = size / 2 - 60;
  const place = Object.fromEntries(
    fleet.agents.map((agent, number) => {
      const angle = (2 * Math.PI * number) / fleet.agents.length - Math.PI / 2;
      return [agent.name, [middle + radius * Math.cos(angle), middle + radius * Math.sin(angle)]];
    }),
  );
  const drawing = made("svg", { viewBox: `0 0 ${size} ${size}` });
  for (const agent of fleet.agents)
    for (const [other, weight] of Object.entries(agent.weights || {})) {
      if (other === agent.name || !(other in place)) continue;
      const [x1, y1] = place[other], [x2, y2] = place[agent.name];
      // Bent towards the middle, and not on top of the line the other way.
      const x = (x1 + x2) / 2 + (y2 - y1) * 0.08, y = (y1 + y2) / 2 - (x2 - x1) * 0.08;
      const kind = weight > 0 ? "edge" : "edge none";
      const line = { class: kind, d: `M ${x1} ${y1} Q ${x} ${y} ${x2} ${y2}`, "stroke-width": 0.6 + 8 * weight };
      const path = made("path", { ...line, "data-from": other, "data-to": agent.name });
      path.append(made("title", {}, `${agent.name} gives ${other} ${short(100 * weight)} %`));
      drawing.append(path);
    }
  for (const agent of fleet.agents) {
    const [x, y] = place[agent.name];
    const kind = agent.byzantine ? "agent byzantine" : agent.round === null ? "agent down" : "agent";
    drawing.append(made("circle", { cx: x, cy: y, r: 14, class: kind }));
    drawing.append(made("text", { x, y: y + 32 }, agent.name));
  }
  byId("network").replaceChildren(drawing);
}

function drawCurves(fleet) {
  const width = 640, height = 240, left = 56, right = 12, top = 12, bottom = 30;
  const figures = Object.entries(fleet.curves).map(([metric, lines]) => {
    const points = Object.values(lines).flat();
    const xs = points.map((point) => point[0]), ys = points.map((point) => point[1]);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs, 1)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
    const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
    const y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
    const drawing = made("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": metric });
    const corner = `M ${left} ${top} V ${height - bottom} H ${width - right}`;
    drawing.append(made("path", { class: "axis", d: corner, fill: "none" }));
    for (const value of [y0, y1])
      drawing.append(made("text", { class: "tick", x: left - 26, y: y(value) + 4 }, short(value)));
    for (const value of [x0, x1])
      drawing.append(made("text", { class: "tick", x: x(value), y: height - 10 }, short(value)));
    for (const [name, line] of Object.entries(lines)) {
      const d = line.map(([round, value], at) => `${at ? "L" : "M"} ${x(round)} ${y(value)}`).join(" ");
      const path = made("path", { class: "curve", d, "data-agent": name });
      path.append(made("title", {}, name));
      drawing.append(path);
    }
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    caption.textContent = `${metric} of every agent, by round`;
    figure.append(drawing, caption);
    return figure;
  });
  byId("plots").replaceChildren(...figures);
}

function drawRejected(fleet) {
  const rows = fleet.agents.flatMap((agent) =>
    Object.entries(agent.rejected || {}).flatMap(([sender, reasons]) =>
      Object.entries(reasons).map(([reason, count]) => {
        const muted = agent.muted[sender] ? ", muted now" : "";
        return row([agent.name, sender || "strangers", reason + muted, `${count}`]);
      }),
    ),
  );
  byId("rejected-rows").replaceChildren(...rows);
  byId("refusals").hidden = !rows.length;
  byId("nothing").hidden = !!rows.length;
}

async function follow() {
  let done = false;
  while (!done) {
    try {
      const answer = await fetch("data", { cache: "no-store" });
      const fleet = await answer.json();
      byId("text").textContent = fleet.text;
      drawAgents(fleet);
      drawNetwork(fleet);
      drawCurves(fleet);
      drawRejected(fleet);
      document.documentElement.dataset.ready = "true";
      done = fleet.done;
    } catch (error) {
      byId("text").textContent = "The fleet no longer answers; this is its last known state.";
      document.documentElement.dataset.gone = "true";
    }
    if (!done) await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

follow();
