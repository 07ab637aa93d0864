/* The board and the agents' views as SVG. A tile is 100 units; teams differ in shape and letter, not only in colour. */

const TILE = 100;
const TEAM = ["red", "blue"];
const LETTER = ["R", "B"];
const UNEVENTFUL = "Nothing but moves: nobody took anything, opened a door or was eliminated.";
let patterns = 0;

/** Hatchings of one drawing; ids are its own, so that many drawings can share a page. */
function hatchings() {
  patterns += 1;
  const id = `hatch${patterns}`;
  const stripes = (name, d, size) => svg("pattern",
    { id: `${id}-${name}`, width: size, height: size, patternUnits: "userSpaceOnUse", class: `stripes ${name}` },
    svg("path", { d }));
  const defs = svg("defs", null,
    stripes("red", "M-5,5 l10,-10 M0,25 l25,-25 M20,30 l10,-10", 25),
    stripes("blue", "M-5,20 l10,10 M0,0 l25,25 M20,-5 l10,10", 25),
    stripes("unseen", "M-5,5 l10,-10 M0,20 l20,-20 M15,25 l10,-10", 20));
  return { id, defs };
}

function letter(x, y, kind, text) {
  return svg("text", { x, y, class: kind }, text);
}

/** A key lies along its tile, its letter above it. `plain` leaves the letter out: in a badge it could not be read. */
function keyShape(team, plain) {
  return svg("g", { class: `thing ${TEAM[team]}` },
    svg("circle", { cx: 28, cy: plain ? 50 : 60, r: 17, class: "ring" }),
    svg("path", { d: `M46,${plain ? 50 : 60} h42 m-17,0 v16 m15,-16 v14`, class: "ring" }),
    plain ? null : letter(70, 29, "letter", LETTER[team]));
}

function ballShape(team, plain) {
  return svg("g", { class: `thing ${TEAM[team]}` },
    svg("circle", { cx: 50, cy: 50, r: 30, class: "solid" }),
    plain ? null : letter(50, 52, "inverse", LETTER[team]));
}

function doorShape(team, state) {
  const parts = [svg("rect", { x: 8, y: 6, width: 84, height: 88, rx: 6, class: state === "open" ? "frame" : "solid" })];
  if (state === "locked") {
    parts.push(svg("path", { d: "M50,66 m-9,0 a9,9 0 1 1 18,0 l-4,4 l5,18 h-20 l5,-18 z", class: "hole" }));
  } else if (state === "closed") parts.push(svg("circle", { cx: 76, cy: 62, r: 7, class: "hole" }));
  else parts.push(svg("path", { d: "M20,14 L52,26 V86 L20,90 Z", class: "solid" }));
  const beside = state === "open";
  parts.push(beside ? letter(72, 50, "letter", LETTER[team]) : letter(50, 30, "inverse", LETTER[team]));
  return svg("g", { class: `thing ${TEAM[team]}` }, ...parts);
}

/** Red points with a plain triangle, blue with a notched one; `turn` is clockwise from "to the right". */
function agentShape(team, turn, label) {
  const outline = team === 0 ? "M94,50 L12,10 L12,90 Z" : "M96,50 L10,8 L28,50 L10,92 Z";
  const group = svg("g", { class: `thing ${TEAM[team]}` },
    svg("path", { d: outline, class: "solid", transform: `rotate(${90 * turn} 50 50)` }));
  // The triangle's middle lies behind the tile's middle, away from where it points.
  const [dx, dy] = AHEAD[turn];
  if (label) group.append(letter(50 - 9 * dx, 52 - 9 * dy, "inverse", label));
  return group;
}

/** What a cell code looks like; `turn` rotates agents for a view that looks up. Nothing for floor. */
function cellShape(code, turn, plain) {
  if (code >= AGENT) {
    const team = code >= AGENT + 4 ? 1 : 0;
    return agentShape(team, (((code - AGENT) % 4) + turn) % 4, LETTER[team]);
  }
  if (code >= 13) return ballShape(code - 13, plain);
  if (code >= 9) return keyShape(code >= 11 ? 1 : 0, plain);
  if (code >= 3) return doorShape((code - 3) % 2, ["locked", "closed", "open"][Math.floor((code - 3) / 2)]);
  return null;
}

function placed(shape, x, y, scale) {
  shape.setAttribute("transform", `translate(${x} ${y}) scale(${scale || 1})`);
  return shape;
}

function ground(code, x, y, hatch) {
  const kind = code === 0 ? "unseen" : code === 2 ? "wall" : "floor";
  const tile = { x, y, width: TILE, height: TILE };
  const parts = [svg("rect", { ...tile, class: kind })];
  if (code === 0) parts.push(svg("rect", { ...tile, fill: `url(#${hatch}-unseen)` }));
  return parts;
}

/** A triangle with what it carries in a badge; `out` draws it pale and crossed out. */
function agentFigure(team, turn, label, hand, out) {
  const group = svg("g", { class: out ? "gone" : null }, agentShape(team, turn, label));
  if (out) group.append(svg("path", { d: "M14,14 L86,86 M86,14 L14,86", class: "cross" }));
  if (hand > EMPTY) {
    // The corners at its tip are free: at its left hand.
    const [x, y] = [[80, 20], [80, 80], [20, 80], [20, 20]][turn];
    group.append(svg("circle", { cx: x, cy: y, r: 28, class: "badge" }), placed(cellShape(hand, 0, true), x - 22, y - 22, 0.44));
  }
  return group;
}

/** The board of 16 by 8; `draw(game, t)` shows a frame. */
function makeBoard() {
  const { id, defs } = hatchings();
  const floor = svg("g");
  const sight = svg("g");
  const things = svg("g");
  const element = svg("svg",
    { viewBox: `0 0 ${WIDTH * TILE} ${HEIGHT * TILE}`, class: "board", "aria-hidden": "true" }, defs, floor, sight, things);
  const draw = (game, t) => {
    const frame = game.frames[t];
    const at = (cell) => [Math.floor(cell / HEIGHT) * TILE, (cell % HEIGHT) * TILE];
    const tiles = [];
    const shapes = [];
    frame.cells.forEach((code, cell) => {
      const [x, y] = at(cell);
      tiles.push(...ground(code, x, y, id));
      const shape = cellShape(code, 0);
      if (shape) shapes.push(placed(shape, x, y));
    });
    const lit = [];
    const gone = [0, 0];
    game.spec.seats.forEach((seat, a) => {
      const team = game.spec.teams[a];
      const out = eliminated(game, frame, a);
      const [x, y] = at(frame.position[a]);
      // All of a team go to one cell when they are out: they are drawn below one another.
      const row = out ? gone[team]++ : 0;
      const label = game.spec.seats.length > 2 || game.spec.teams[0] === game.spec.teams[1]
        ? LETTER[team] + seat.split("_").pop() : LETTER[team];
      shapes.push(placed(agentFigure(team, frame.heading[a], label, frame.hand[a], out), x, y + row * TILE));
      if (!out) lit.push(...shade(game, t, a, id));
    });
    show(floor, ...tiles);
    show(sight, ...lit);
    show(things, ...shapes);
  };
  return { element, draw, sight };
}

/** What agent a sees, shaded in its colour and in its own direction of hatching. */
function shade(game, t, a, hatch) {
  const team = TEAM[game.spec.teams[a]];
  const parts = [];
  for (const cell of seenCells(game, t, a)) {
    if (game.frames[t].cells[cell] === WALL) continue; // a shade over walls would only be mud
    const tile = { x: Math.floor(cell / HEIGHT) * TILE, y: (cell % HEIGHT) * TILE, width: TILE, height: TILE };
    parts.push(svg("rect", { ...tile, class: `sight ${team}` }), svg("rect", { ...tile, fill: `url(#${hatch}-${team})` }));
  }
  return parts;
}

/** One agent's own view; it looks up, and its own cell shows what it carries. */
function makeView(view) {
  const { id, defs } = hatchings();
  const tiles = svg("g");
  const size = view * TILE;
  const element = svg("svg", { viewBox: `-6 -6 ${size + 12} ${size + 12}`, class: "view", "aria-hidden": "true" }, defs, tiles);
  const draw = (game, t, a) => {
    const tokens = game.frames[t].tokens[a];
    const turn = 3 - game.frames[t].heading[a] + 4; // its own heading becomes "up"
    const parts = [];
    for (let k = 0; k < view * view; k += 1) {
      const [x, y] = [Math.floor(k / view) * TILE, (k % view) * TILE];
      parts.push(...ground(tokens[k], x, y, id));
      const shape = cellShape(tokens[k], turn);
      if (shape) parts.push(placed(shape, x, y));
    }
    const own = { x: ((view - 1) / 2) * TILE + 3, y: (view - 1) * TILE + 3, width: TILE - 6, height: TILE - 6, rx: 10 };
    parts.push(svg("rect", { ...own, class: `own ${TEAM[game.spec.teams[a]]}` }));
    show(tiles, ...parts);
  };
  return { element, draw };
}

/* One panel for each agent: its view, and what it does, carries and earns, as text. */

function carriedWords(code) {
  if (code <= EMPTY) return "nothing";
  if (code >= 13) return `the ${TEAM[code - 13]} ball`;
  return `the ${TEAM[code >= 11 ? 1 : 0]} key`;
}

const HEADINGS = ["right", "down", "left", "up"];

/** Panel of agent a; `draw(game, t)` shows a frame. */
function makePanel(game, data, a) {
  const { spec } = game;
  const view = makeView(spec.view);
  const rows = { does: line("Does"), carries: line("Carries"), looks: line("Looks"), reward: line("Return") };
  if (spec.missions) rows.mission = line("Mission");
  if (game.says) rows.says = line("Says");
  const figure = html("figure", null, view.element, html("figcaption", null, "its view, up is ahead"));
  const facts = html("dl", null, ...Object.values(rows).flatMap((row) => row.parts));
  const team = TEAM[spec.teams[a]];
  const head = html("p", { class: "who" }, html("span", { class: `seat ${team}` }, spec.seats[a]), html("span", { class: "player" }, game.players[a]));
  const element = html("li", { class: "panel" }, figure, html("div", null, head, facts));
  const draw = (t) => {
    const frame = game.frames[t];
    const out = eliminated(game, frame, a);
    view.draw(game, t, a);
    element.classList.toggle("is-out", out);
    show(rows.does.value, t > 0 ? game.words[t - 1][a] : "nothing yet");
    show(rows.carries.value, carriedWords(frame.hand[a]));
    show(rows.looks.value, out ? "out of the game" : HEADINGS[frame.heading[a]]);
    const paid = game.paid[t][a];
    show(rows.reward.value, figureOf(game.rewards[t][a]),
      paid ? html("span", { class: "paid" }, ` (${signed(paid)} now)`) : null);
    if (rows.says) show(rows.says.value, game.says[a][t - 1] ?? "nothing");
    if (rows.mission) show(rows.mission.value, data.missions[frame.tokens[a][spec.view * spec.view + 1]]);
  };
  return { element, draw };
}
