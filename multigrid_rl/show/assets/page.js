/* Making elements. Text only ever becomes text: nothing is parsed as markup. */

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === false || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function html(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function show(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** A button of at least 40 px with a name for those who do not see its sign. */
function button(sign, name, onclick, attributes) {
  return html("button", { type: "button", "aria-label": name, title: name, onclick, ...attributes }, sign);
}

/** Three figures that matter, with a real minus. */
function figure(value) {
  if (!Number.isFinite(value)) return "none";
  const size = Math.abs(value);
  const text = size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  return text.replace("-", "\u2212");
}

function whole(value) {
  return Math.round(value).toLocaleString("en");
}

/** +0.5, or with a real minus. */
function signed(value) {
  const text = String(Number(value.toFixed(3)));
  return value > 0 ? `+${text}` : text.replace("-", "\u2212");
}

/* Curves that can be read: by pointing at them, and by arrow keys. */

function makePlot(root) {
  const data = JSON.parse(root.querySelector(".plot-data").textContent);
  const area = root.querySelector(".area");
  const readout = root.querySelector(".readout");
  const drawing = area.querySelector("svg");
  const [width, left, right, top, bottom] = data.axes;
  const cursor = svg("line", { class: "cursor", y1: top, y2: bottom });
  let at = data.x.length - 1;

  function written(value) {
    if (value === null) return "none yet";
    return data.share ? `${Math.round(100 * value)}%` : figure(value);
  }

  function words() {
    const rows = data.rows.map(([name, values], k) =>
      (k === 0 && (data.rows.length === 1 || data.gate) ? written(values[at]) : `${name} ${written(values[at])}`));
    if (data.gate) {
      const [comparison, bound] = data.gate;
      const value = data.rows[0][1][at];
      rows.splice(1, 0, (comparison === "<=" ? value <= bound : value >= bound) ? "gate met" : "gate not met");
    }
    return rows.join(", ");
  }

  function draw() {
    const x = left + ((right - left) * data.x[at]) / data.max;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    if (!cursor.parentNode) drawing.append(cursor);
    const where = `${whole(data.x[at])} steps`;
    show(readout, html("b", null, where), `: ${words()}`);
    area.setAttribute("aria-valuenow", String(at));
    area.setAttribute("aria-valuetext", `${where}: ${words()}`);
  }

  function move(to) {
    at = Math.min(Math.max(to, 0), data.x.length - 1);
    draw();
  }

  function nearest(event) {
    const box = drawing.getBoundingClientRect();
    const place = (width * (event.clientX - box.left)) / box.width;
    const wanted = (data.max * (place - left)) / (right - left);
    let best = 0;
    data.x.forEach((x, k) => { if (Math.abs(x - wanted) < Math.abs(data.x[best] - wanted)) best = k; });
    move(best);
  }

  for (const [name, value] of Object.entries({
    role: "slider", tabindex: 0, "aria-label": `${data.label}, by ${data.steps} steps`,
    "aria-valuemin": 0, "aria-valuemax": data.x.length - 1,
  })) area.setAttribute(name, String(value));
  draw();
  cursor.remove();
  area.addEventListener("pointermove", nearest);
  area.addEventListener("pointerdown", nearest);
  area.addEventListener("pointerleave", () => { if (document.activeElement !== area) cursor.remove(); });
  area.addEventListener("focus", draw);
  area.addEventListener("blur", () => cursor.remove());
  area.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(data.x.length / 20));
    const keys = {
      ArrowRight: () => move(at + 1), ArrowLeft: () => move(at - 1), ArrowUp: () => move(at + 1), ArrowDown: () => move(at - 1),
      PageUp: () => move(at + far), PageDown: () => move(at - far), Home: () => move(0), End: () => move(data.x.length - 1),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

/* Starts what the page holds. */

async function begin(root) {
  root.querySelectorAll(".plot").forEach(makePlot);
  const place = root.querySelector("#replay");
  if (!place) return;
  if (typeof DecompressionStream === "undefined") {
    show(place, html("p", { class: "note" }, "The replay needs a browser of 2023 or later; everything else on this page does not."));
    return;
  }
  const data = JSON.parse(place.parentNode.querySelector("#replay-data").textContent);
  data.bytes = await Promise.all(data.games.map((game) => inflated(game.frames)));
  const replay = makeReplay(place, data);
  document.querySelectorAll("[data-game]").forEach((link) => link.addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("games").scrollIntoView({ block: "start" });
    replay.choose(Number(link.dataset.game));
  }));
}

const table = document.getElementById("table");
if (table) makeTable(table, JSON.parse(document.getElementById("table-data").textContent));
else if (document.body.dataset.live === undefined) begin(document);
else follow(begin);
