"use strict";
// Replaces the page's content, so that it does not blink and stays where it was scrolled to.
const seconds = Number(document.documentElement.dataset.seconds) || 5;
async function refresh() {
  const field = document.activeElement;
  if (document.hidden || (field && field.matches("input, select"))) {
    return;
  }
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.querySelector("main");
    if (answer.ok && main) {
      document.querySelector("main").replaceWith(main);
      document.querySelector("header").replaceWith(page.querySelector("header"));
    }
  } catch {
    document.documentElement.classList.add("lost");
    return;
  }
  document.documentElement.classList.remove("lost");
}
setInterval(refresh, seconds * 1000);
