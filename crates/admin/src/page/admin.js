// The open overview: figures each five seconds, and events as they happen. Without this file the pages
// work by reloading them.
"use strict";
const live = document.querySelector("[data-live]");
if (live) {
  const stream = new EventSource(live.dataset.live);
  stream.addEventListener("figures", (message) => {
    const figures = JSON.parse(message.data);
    for (const cell of document.querySelectorAll("[data-figure]")) {
      cell.textContent = figures[cell.dataset.figure];
    }
    live.dataset.connected = "true";
  });
  stream.addEventListener("happened", (message) => {
    const line = document.createElement("li");
    line.textContent = JSON.parse(message.data);
    const events = document.getElementById("events");
    events.prepend(line);
    while (events.children.length > 30) events.lastChild.remove();
  });
  addEventListener("pagehide", () => stream.close());
}
