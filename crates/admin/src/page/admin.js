// The open overview: its report again every five seconds, and events as they happen. Without this file the
// pages work by reloading them.
"use strict";
const live = document.getElementById("live");
if (live) {
  const stream = new EventSource(live.dataset.live);
  stream.addEventListener("report", (message) => {
    // Whoever is about to follow a link by the keyboard keeps it.
    if (!live.contains(document.activeElement)) live.innerHTML = JSON.parse(message.data);
    live.dataset.connected = "true";
  });
  stream.addEventListener("happened", (message) => {
    const line = document.createElement("li");
    line.textContent = JSON.parse(message.data);
    const events = document.getElementById("events");
    events.prepend(line);
    while (events.children.length > 30) events.lastChild.remove();
  });
  stream.onerror = () => delete live.dataset.connected;
  addEventListener("pagehide", () => stream.close());
}
