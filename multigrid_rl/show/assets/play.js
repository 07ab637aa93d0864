/* A person plays: the server's engine says what is seen, this draws it and sends back what the person does. */

/** Keys of each action, by its number; the first one is shown. */
const KEYS = [["\u2190", "ArrowLeft", "a"], ["\u2192", "ArrowRight", "d"], ["\u2191", "ArrowUp", "w"], ["P", "p"], ["O", "o", "Backspace"],
  ["Space", " "], ["N", "n", "Enter"]];

function makeTable(root, data) {
  const [spec] = data.specs;
  const own = spec.seats.indexOf(data.seat);
  const game = { spec, steps: 0, frames: [], words: [], paid: [], rewards: [], players: data.players };
  const board = makeBoard();
  const panels = spec.seats.map((_, a) => makePanel(game, data, a));
  panels.forEach((panel, a) => { if (a !== own) panel.element.querySelector("figure").remove(); });
  const head = html("p", { class: "counter" });
  const result = html("p", { class: "result", role: "status", "aria-live": "polite" });
  const score = html("p", { class: "note" });
  const next = button("Next game", "Next game (R)", () => {
    next.blur(); // Space and Enter are actions of the new game
    send({ restart: true });
  }, { class: "play" });
  const moves = data.actions.map((words, action) => button(html("span", null, words, " ", html("kbd", null, KEYS[action][0])), words, (event) => {
    if (event.detail) event.currentTarget.blur(); // pressed by hand: Space goes on to mean what it says
    act(action);
  }));
  let now = null;
  let busy = false;
  let pressed = null; // while an answer is on its way: the last wish

  function take(shown) {
    if (now && now.game === shown.game && shown.step < now.step) return; // it was overtaken on its way
    if (!now || now.game !== shown.game) for (const list of [game.frames, game.words, game.paid, game.rewards]) list.length = 0;
    now = shown;
    const bytes = Uint8Array.from(atob(shown.frame), (character) => character.charCodeAt(0));
    const t = shown.step;
    game.frames[t] = decodeFrame(spec, bytes);
    game.words[t - 1] = shown.words;
    game.rewards[t] = shown.returns.map((value) => (value === null ? NaN : value));
    const before = game.rewards[t - 1];
    game.paid[t] = game.rewards[t].map((value, a) => (before && Number.isFinite(value - before[a]) ? value - before[a] : 0));
    board.draw(game, t);
    panels[own].draw(t);
    panels.forEach((panel, a) => { if (a !== own) aside(panel, a, t); });
    const turn = shown.over ? "the game is over" : shown.out ? "you are out; the others play on" : "your move";
    show(head, html("b", null, `Step ${t}`), ` of at most ${shown.most}: ${turn}`);
    show(result, shown.result);
    show(score, shown.score);
    const mine = !shown.over && !shown.out;
    moves.forEach((move) => move.setAttribute("aria-disabled", String(!mine)));
  }

  /** What one knows of another: what it is seen to do. */
  function aside(panel, a, t) {
    panel.draw(t);
    panel.element.classList.add("aside");
    const unknown = now.returns[a] === null;
    panel.element.querySelectorAll("dd").forEach((row, k) => {
      if (k > 0 && unknown) show(row, "unknown");
      else if (k === 4) show(row, "unknown");
    });
  }

  async function send(wish) {
    if (busy) {
      pressed = wish;
      return;
    }
    busy = true;
    pressed = null;
    try {
      const what = { ...wish, game: now.game, step: now.step };
      const answer = await fetch("sent", { method: "POST", body: JSON.stringify(what) });
      if (answer.ok) take(await answer.json());
    } catch { show(result, "Not connected: the game waits for its server."); } finally { busy = false; }
    if (pressed) send(pressed);
  }

  function act(action) {
    if (now && !now.over) send({ action });
  }

  async function look() {
    const answer = await fetch("shown");
    if (answer.ok) take(await answer.json());
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    // A button that has the focus is pressed by these.
    if (event.target.tagName === "BUTTON" && (key === " " || key === "Enter")) return;
    const action = KEYS.findIndex((keys) => keys.slice(1).includes(key));
    if (key === "r" && now) send({ restart: true });
    else if (action >= 0) act(action);
    else return;
    event.preventDefault();
  });
  show(root,
    html("div", { class: "scene" },
      html("div", { class: "left" }, head, html("div", { class: "stage" }, board.element),
        html("div", { class: "bar moves", role: "group", "aria-label": "Actions" }, ...moves), result, next, score),
      html("ul", { class: "panels" }, panels[own].element, ...panels.filter((_, a) => a !== own).map((panel) => panel.element))));
  const source = new EventSource("events");
  source.addEventListener("step", () => look().catch(() => {}));
  source.addEventListener("error", () => {
    now = null; // who answers next may be another server
    show(result, "Not connected: the game waits for its server.");
  });
}
