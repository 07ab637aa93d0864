/* Starts what the page holds. */

function start() {
  document.querySelectorAll(".plot").forEach(makePlot);
  const root = document.getElementById("replay");
  const block = document.getElementById("replay-data");
  if (!root || !block) return;
  const replay = makeReplay(root, JSON.parse(block.textContent));
  document.querySelectorAll("[data-game]").forEach((link) => link.addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("games").scrollIntoView({ block: "start" });
    replay.choose(Number(link.dataset.game));
  }));
}

start();
