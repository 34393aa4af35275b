// A section that is folded opens for a link to it, and all of them open on paper.
function unfold(section) {
  const fold = section && section.querySelector("details.fold");
  if (fold) fold.open = true;
}
all("nav a").forEach((link) => link.addEventListener("click", () => unfold(document.getElementById(link.hash.slice(1)))));
if (location.hash) unfold(document.getElementById(location.hash.slice(1)));
addEventListener("beforeprint", () => all("section").forEach(unfold));
// Everything is listening: draw for the first time.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
changed();
