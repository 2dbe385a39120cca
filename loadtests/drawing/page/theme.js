// The button that changes between the light and the dark ground.

function themeButton() {
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  const name = () => (button.textContent = now() === "dark" ? "Light" : "Dark");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = now() === "dark" ? "light" : "dark";
    name();
  });
  dark.addEventListener("change", name);
  name();
  button.hidden = false;
}
