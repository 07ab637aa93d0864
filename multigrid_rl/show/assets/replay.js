/* The replay: a game step by step. It never starts by itself, and says each step once, unless it plays. */

const SPEEDS = [0.5, 1, 2, 4, 8];
/** Steps a second at 1x. */
const PACE = 2;
/** Up to so many games one list is enough to choose from. */
const FEW = 12;

function makeReplay(root, data) {
  const state = { game: null, t: 0, playing: false, speed: 1, timer: 0 };
  const parts = controls();
  const board = makeBoard();
  const stage = html("div", {
    class: "stage", tabindex: 0, role: "group", "aria-roledescription": "board",
    "aria-label": "Board. Space plays and pauses, arrow keys step, Home and End jump, plus and minus change the speed.",
  }, board.element);
  const result = html("p", { class: "result" });
  const spoken = html("p", { class: "heard", role: "status", "aria-live": "polite" });
  const panels = html("ul", { class: "panels" });
  const told = html("div", { class: "log" });
  let drawn = [];

  function draw() {
    const { game, t } = state;
    board.draw(game, t);
    drawn.forEach((part) => part.draw(t));
    parts.scrubber.value = String(t);
    parts.scrubber.setAttribute("aria-valuetext", `step ${t} of ${game.steps}`);
    show(parts.counter, html("b", null, String(t)), ` / ${game.steps}`);
    show(result, t === game.steps ? game.result : "");
    result.className = `result ${t === game.steps ? TEAM[game.winner] || "nobody" : ""}`;
    // Not `disabled`: a button that loses the focus at the last step would throw a keyboard's user out.
    const last = t === game.steps;
    [parts.first, parts.back].forEach((element) => element.setAttribute("aria-disabled", String(t === 0)));
    [parts.next, parts.last].forEach((element) => element.setAttribute("aria-disabled", String(last)));
    const name = state.playing ? "Pause" : last ? "Play again" : "Play";
    parts.play.setAttribute("aria-label", name);
    parts.play.title = name;
    show(parts.play, state.playing ? "\u275A\u275A" : "\u25B6\uFE0E");
  }

  function say(text) {
    show(spoken, text);
  }

  function stop() {
    clearTimeout(state.timer);
    state.playing = false;
  }

  function go(t) {
    stop();
    state.t = Math.min(Math.max(t, 0), state.game.steps);
    draw();
    say(spokenStep(state.game, state.t));
  }

  function tick() {
    state.timer = setTimeout(() => {
      state.t += 1;
      if (state.t >= state.game.steps) {
        stop();
        draw();
        say(spokenStep(state.game, state.t));
        return;
      }
      draw();
      tick();
    }, 1000 / (PACE * state.speed));
  }

  function toggle() {
    if (state.playing) {
      go(state.t);
      return;
    }
    if (state.t === state.game.steps) state.t = 0;
    state.playing = true;
    draw();
    say(`Playing at ${state.speed} times speed.`);
    tick();
  }

  function hasten(by) {
    const at = Math.min(Math.max(SPEEDS.indexOf(state.speed) + by, 0), SPEEDS.length - 1);
    state.speed = SPEEDS[at];
    parts.speed.value = String(state.speed);
    say(`${state.speed} times speed.`);
  }

  function choose(number) {
    stop();
    state.game = decodeGame(data.games[number], data.bytes[number], data);
    state.t = 0;
    const { game } = state;
    parts.game.value = String(number);
    parts.scrubber.max = String(game.steps);
    const agents = game.spec.seats.map((_, a) => makePanel(game, data, a));
    const moments = makeMoments(game, go);
    drawn = [...agents, moments];
    scene.classList.toggle("many", agents.length > 2);
    show(panels, ...agents.map((part) => part.element));
    show(told, moments.element);
    show(parts.ticks, ...game.moments.map(([t]) => {
      const x = `${(100 * t) / game.steps}%`;
      return svg("line", { x1: x, x2: x, y1: 0, y2: 8 });
    }));
    draw();
  }

  function controls() {
    const made = {
      game: html("select", { onchange: (event) => { choose(Number(event.target.value)); say(spokenStep(state.game, 0)); } }),
      entry: html("select", { onchange: () => offer() }),
      first: button("\u2758\u25C0\uFE0E", "First step", () => go(0)),
      back: button("\u25C0\uFE0E", "One step back", () => go(state.t - 1)),
      play: button("\u25B6\uFE0E", "Play", toggle, { class: "play" }),
      next: button("\u25B6\uFE0E", "One step forward", () => go(state.t + 1)),
      last: button("\u25B6\uFE0E\u2758", "Last step", () => go(state.game.steps)),
      scrubber: html("input", {
        type: "range", min: 0, max: 1, step: 1, value: 0, "aria-label": "Step",
        oninput: (event) => go(Number(event.target.value)),
      }),
      speed: html("select", { onchange: (event) => { state.speed = Number(event.target.value); } },
        ...SPEEDS.map((speed) => html("option", { value: speed, selected: speed === 1 }, `${speed}\u00D7`))),
      counter: html("output", { class: "counter", "aria-hidden": "true" }),
      ticks: svg("svg", { class: "ticks", width: "100%", height: 8, "aria-hidden": "true" }),
      sight: html("input", {
        type: "checkbox", checked: true, onchange: (event) => board.sight.classList.toggle("off", !event.target.checked),
      }),
    };
    return made;
  }

  /** Fill the list of games, those of one entry where somebody is chosen. */
  function offer() {
    const player = parts.entry.value === "" ? -1 : Number(parts.entry.value);
    const chosen = data.games.map((game, number) => ({ game, number }))
      .filter(({ game }) => player < 0 || game.players.includes(player));
    show(parts.game, ...chosen.map(({ game, number }) => html("option", { value: number }, game.title)));
    choose(chosen[0].number);
  }

  function field(name, element) {
    return html("label", { class: "field" }, html("span", null, name), element);
  }

  const present = [...new Set(data.games.flatMap((game) => game.players))];
  show(parts.entry, html("option", { value: "" }, "all"),
    ...present.map((k) => html("option", { value: k }, data.players[k])));
  const choice = html("div", { class: "choice" },
    data.games.length > FEW ? field("Entry", parts.entry) : null, field("Game", parts.game));
  const bar = html("div", { class: "bar" },
    html("div", { class: "buttons", role: "group", "aria-label": "Playback" }, parts.first, parts.back, parts.play, parts.next, parts.last),
    html("div", { class: "scrub" }, parts.ticks, parts.scrubber), parts.counter, field("Speed", parts.speed),
    board.sight && html("label", { class: "field tick" }, parts.sight, html("span", null, "What agents see")));
  const keys = html("p", { class: "keys" }, "Keys: ", ...[["Space", "play"], ["\u2190 \u2192", "step"], ["Home End", "jump"], ["+ \u2212", "speed"]]
    .flatMap(([key, does]) => [html("kbd", null, key), ` ${does}  `]));
  const scene = html("div", { class: "scene" }, html("div", { class: "left" }, stage, result, bar, keys), panels, told);
  show(root, choice, scene, spoken);
  root.addEventListener("keydown", (event) => pressed(event, { go, toggle, hasten, state }));
  offer();
  return { choose: (number) => { parts.entry.value = ""; offer(); choose(number); stage.focus(); say(spokenStep(state.game, 0)); } };
}

/** Keys of the whole replay; where a control has its own meaning for a key, that stands. */
function pressed(event, { go, toggle, hasten, state }) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const kind = event.target.tagName;
  const own = kind === "SELECT" || kind === "SUMMARY" || (kind === "INPUT" && event.target.type === "checkbox");
  const keys = {
    ArrowLeft: () => go(state.t - 1), ArrowRight: () => go(state.t + 1),
    Home: () => go(0), End: () => go(state.game.steps),
    "+": () => hasten(1), "=": () => hasten(1), "-": () => hasten(-1),
  };
  if (kind !== "BUTTON") keys[" "] = toggle;
  const act = keys[event.key];
  if (!act || own) return;
  event.preventDefault();
  act();
}
