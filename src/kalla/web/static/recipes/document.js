// A recipe's text as a tree: one value is changed, comments and everything else stay as they are.
import { isCollection, isMap, isSeq, parseDocument } from "../bundled/yaml_editor.js";

const WRITTEN = { lineWidth: 0, flowCollectionPadding: false };

/** The tree of a text, or null while its YAML cannot be read. */
export function read(text) {
  const tree = parseDocument(text, { keepSourceTokens: false });
  return tree.errors.length || !isMap(tree.contents) ? null : tree;
}

/** What is wrong with the YAML itself, with its place in the text. */
export function errorsOf(text) {
  return parseDocument(text).errors.map((error) => ({ from: error.pos[0], to: error.pos[1], message: error.message.split("\n")[0] }));
}

export function write(tree) {
  return tree.toString(WRITTEN);
}

/** `rules[0].conditions[1].op` as ["rules", 0, "conditions", 1, "op"]. */
export function pathOf(spelled) {
  return [...spelled.matchAll(/\[(\d+)\]|([^.[\]]+)/g)].map(([, index, name]) => (index === undefined ? name : Number(index)));
}

export function spelled(path) {
  return path.map((part) => (typeof part === "number" ? `[${part}]` : `.${part}`)).join("").replace(/^\./, "");
}

/** From where to where a value stands in the text; of the nearest part above it, if it is not there. */
export function placeOf(tree, path) {
  for (let length = path.length; length > 0; length -= 1) {
    const node = tree.getIn(path.slice(0, length), true);
    if (node?.range) return [node.range[0], node.range[1]];
  }
  return [0, 0];
}

export function set(tree, path, value) {
  if (value === "" || value === null) {
    tree.deleteIn(path);
    return;
  }
  for (let length = 1; length < path.length; length += 1) {
    if (!isCollection(tree.getIn(path.slice(0, length), true))) tree.setIn(path.slice(0, length), tree.createNode(typeof path[length] === "number" ? [] : {}));
  }
  const flow = typeof value === "object";
  tree.setIn(path, flow ? tree.createNode(value, { flow: true }) : value);
}

export function add(tree, path, value, flow) {
  const node = tree.createNode(value, { flow });
  const list = tree.getIn(path, true);
  if (isSeq(list)) list.add(node);
  else tree.setIn(path, tree.createNode([value], { flow: false }));
}

export function remove(tree, path) {
  ownComments(tree, path.slice(0, -1));
  tree.deleteIn(path);
}

/** Let an item of a list change places with its neighbour; its comments go with it. */
export function move(tree, path, by) {
  const list = ownComments(tree, path.slice(0, -1));
  const from = path.at(-1);
  const [item] = list.items.splice(from, 1);
  list.items.splice(from + by, 0, item);
}

// The parser gives a comment above the first item to the list itself.
function ownComments(tree, path) {
  const list = tree.getIn(path, true);
  const [first] = list.items;
  if (list.commentBefore && first && !first.commentBefore) {
    first.commentBefore = list.commentBefore;
    list.commentBefore = null;
  }
  return list;
}
