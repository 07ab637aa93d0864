/* A page of something that goes on: what has changed is put in its place; what has not keeps its state. */

/** Start `begin(root)` on new parts, now and whenever the server says that there is a newer page. */
function follow(begin) {
  const parts = (page) => [page.querySelector("header"), ...page.querySelectorAll("main > *")];
  // As they were sent: what a script draws into a part does not count as a change.
  const key = (part, place) => part.id || `part ${place}`;
  const sent = (page) => new Map(parts(page).map((part, place) => [key(part, place), part.outerHTML]));
  const state = html("p", { class: "live", role: "status" });
  let known = null;

  async function refresh() {
    const answer = await fetch("./");
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const now = sent(page);
    const fresh = parts(page);
    document.title = page.title;
    if (known === null || [...now.keys()].join() !== [...known.keys()].join()) {
      document.querySelector("header").replaceWith(document.adoptNode(fresh[0]));
      show(document.querySelector("main"), ...fresh.slice(1).map((part) => document.adoptNode(part)));
      begin(document);
    } else {
      const old = new Map(parts(document).map((part, place) => [key(part, place), part]));
      fresh.forEach((part, place) => {
        const name = key(part, place);
        const held = old.get(name);
        // Who is reading a curve by keyboard goes on reading it.
        if (now.get(name) === known.get(name) || held.contains(document.activeElement)) return;
        held.replaceWith(document.adoptNode(part));
        begin(part);
      });
    }
    known = now;
  }

  document.querySelector("footer").before(state);
  const source = new EventSource("events");
  source.addEventListener("report", () => refresh().catch(() => {}));
  source.addEventListener("open", () => show(state, "Live: this page follows the run."));
  source.addEventListener("error", () => show(state, "Not connected: the page stays as it is, and follows again when its server answers."));
}
