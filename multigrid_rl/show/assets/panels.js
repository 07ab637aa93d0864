/* One panel for each agent: its view, and what it does, carries and earns, as text. */

function carriedWords(code) {
  if (code <= EMPTY) return "nothing";
  if (code >= 13) return `the ${TEAM[code - 13]} ball`;
  return `the ${TEAM[code >= 11 ? 1 : 0]} key`;
}

const HEADINGS = ["right", "down", "left", "up"];

function line(name) {
  const value = html("dd");
  return { value, parts: [html("dt", null, name), value] };
}

/** Panel of agent a; `draw(game, t)` shows a frame. */
function makePanel(game, data, a) {
  const { spec } = game;
  const view = makeView(spec.view);
  const rows = { does: line("Does"), carries: line("Carries"), looks: line("Looks"), reward: line("Return") };
  if (spec.missions) rows.mission = line("Mission");
  const figure = html("figure", null, view.element, html("figcaption", null, "its view, up is ahead"));
  const facts = html("dl", null, ...Object.values(rows).flatMap((row) => row.parts));
  const team = TEAM[spec.teams[a]];
  const head = html("h4", null, html("span", { class: `seat ${team}` }, spec.seats[a]), html("span", { class: "player" }, game.players[a]));
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
    if (rows.mission) show(rows.mission.value, data.missions[frame.mission[a]]);
  };
  return { element, draw };
}

function figureOf(value) {
  return Math.abs(value) < 5e-4 ? "0" : value.toFixed(3).replace("-", "\u2212");
}

/** The list of moments worth a look; each is a button that goes there. */
function makeMoments(game, go) {
  const list = html("ol", { class: "moments" });
  const buttons = game.moments.map(([t, a]) => {
    const words = game.words[t - 1][a].split(", ").slice(1).join(", ") || game.words[t - 1][a];
    const element = html("button", { type: "button", onclick: () => go(t) },
      html("span", { class: "when" }, `step ${t}`),
      html("span", { class: `seat ${TEAM[game.spec.teams[a]]}` }, game.spec.seats[a]),
      html("span", { class: "what" }, words));
    list.append(html("li", null, element));
    return { t, element };
  });
  const draw = (now) => {
    let last = null;
    for (const { t, element } of buttons) {
      element.classList.toggle("ahead", t > now);
      if (t <= now) last = element.parentNode;
      if (t === now) element.setAttribute("aria-current", "step");
      else element.removeAttribute("aria-current");
    }
    // Only the list moves: scrollIntoView would move the page as well.
    if (list.clientHeight) list.scrollTop = last ? last.offsetTop - list.offsetTop - list.clientHeight / 2 : 0;
  };
  const element = html("details", { class: "told", open: true },
    html("summary", null, `Moments (${game.moments.length})`),
    game.moments.length ? list : html("p", null, "Nothing but moves: nobody took anything, opened a door or was eliminated."));
  return { element, draw };
}

/** One step in words, for those who hear it. */
function spokenStep(game, t) {
  const said = [`Step ${t} of ${game.steps}.`];
  game.spec.seats.forEach((seat, a) => {
    if (t === 0) return;
    const paid = game.paid[t][a];
    said.push(`${seat}: ${game.words[t - 1][a]}${paid ? `, reward ${signed(paid)}` : ""}.`);
  });
  if (t === game.steps) said.push(`${game.result}.`);
  return said.join(" ");
}
