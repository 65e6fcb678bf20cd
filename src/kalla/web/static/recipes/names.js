// What the two sides of a recipe are called: as in its evidence, by alias, table, source or file.

export function sideNames(sources, fileNames = {}) {
  const [left, right] = ["left", "right"].map((side) => nameOf(sources?.[side], fileNames) || side);
  return left.toLowerCase() === right.toLowerCase() ? { left: `${left} (left)`, right: `${right} (right)` } : { left, right };
}

function nameOf(source, fileNames) {
  if (typeof source?.uri !== "string") return "";
  const uri = source.uri.replace(/^source:\/\//, "");
  const file = fileNames[source.uri] || uri.split("/").filter((part) => !/[*?[]/.test(part)).at(-1) || "";
  const name = source.alias || source.table?.split(".").at(-1) || (file === uri ? file : file.split(".")[0]);
  return String(name).slice(0, 40);
}
