// Dark or light: the system decides, until the reader does. Runs before the page is painted.
(() => {
  "use strict";
  const KEY = "heretix-theme";
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    try { return localStorage.getItem(KEY); } catch { return null; }
  };
  const apply = (choice) => {
    if (choice === "dark" || choice === "light") root.dataset.theme = choice;
    else delete root.dataset.theme;
  };
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  apply(read());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("[data-theme-toggle]");
    if (!button) return;
    const say = () => {
      button.textContent = isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    };
    button.hidden = false;
    say();
    system.addEventListener("change", say);
    button.addEventListener("click", () => {
      const choice = isDark() ? "light" : "dark";
      apply(choice);
      try { localStorage.setItem(KEY, choice); } catch { /* a private window keeps no choice */ }
      say();
    });
  });
})();
