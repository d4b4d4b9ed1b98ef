// Light and dark. Charts are drawn on canvases, so they ask for colours and listen for a change.

const root = document.documentElement;
const darkByDefault = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = "auto"; // or "light", "dark"
let printing = false;
const onTheme = [];
const onData = []; // of a live page: what shows numbers, and what shows configuration and machine
const onFacts = [];

function color(name) {
  return getComputedStyle(root).getPropertyValue("--" + name).trim();
}

function applyTheme() {
  const dark = !printing && (chosenTheme === "auto" ? darkByDefault.matches : chosenTheme === "dark");
  root.dataset.dark = dark ? "1" : "0";
  for (const follow of onTheme) follow();
}

function faint(css, share) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(css.slice(at, at + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${share})`;
}

darkByDefault.addEventListener("change", applyTheme);
root.dataset.dark = darkByDefault.matches ? "1" : "0";
