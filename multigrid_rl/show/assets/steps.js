/* Steps in words, whatever the game; what draws it says what its teams are called and what its panels show. */

/** Bytes of a text in base64, decompressed. */
async function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function line(name) {
  const value = html("dd");
  return { value, parts: [html("dt", null, name), value] };
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
    game.moments.length ? list : html("p", null, UNEVENTFUL));
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
