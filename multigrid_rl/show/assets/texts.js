/* Games that are written as text, as show/texts.py packed them; in the place of decode.js and board.js. */

/** Teams have no colours of their own. */
const TEAM = [];
const UNEVENTFUL = "Nobody did anything.";

/** One game with every frame; words, rewards and paid as decode.js has them, null where an agent did nothing. */
function decodeGame(game, bytes, data) {
  const spec = data.specs[game.spec];
  const rewards = game.totals;
  return {
    ...game, spec, rewards, texts: new TextDecoder().decode(bytes).split("\0"),
    words: game.words.map((row) => row.map((word) => word || "nothing")),
    paid: rewards.map((row, t) => row.map((value, a) => value - (t ? rewards[t - 1][a] : 0))),
    moments: game.words.flatMap((row, t) => row.flatMap((word, a) => (word === null ? [] : [[t + 1, a]]))),
    players: game.players.map((k) => data.players[k]),
  };
}

function makeBoard() {
  const element = html("pre", { class: "text-board" });
  return { element, draw: (game, t) => show(element, game.texts[t]), sight: null };
}

/** Panel of agent a: what it does and has earned. */
function makePanel(game, data, a) {
  const rows = { does: line("Does"), reward: line("Return") };
  if (game.says) rows.says = line("Says");
  const head = html("p", { class: "who" }, html("span", { class: "seat" }, game.spec.seats[a]), html("span", { class: "player" }, game.players[a]));
  const element = html("li", { class: "panel worded" }, head, html("dl", null, ...Object.values(rows).flatMap((row) => row.parts)));
  const draw = (t) => {
    const paid = game.paid[t][a];
    if (rows.says) show(rows.says.value, game.says[a][t - 1] ?? "nothing");
    show(rows.does.value, t > 0 ? game.words[t - 1][a] : "nothing yet");
    show(rows.reward.value, figureOf(game.rewards[t][a]), paid ? html("span", { class: "paid" }, ` (${signed(paid)} now)`) : null);
  };
  return { element, draw };
}
