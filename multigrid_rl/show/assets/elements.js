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
