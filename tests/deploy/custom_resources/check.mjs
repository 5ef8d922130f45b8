// Reads a JSON list of custom resources from standard input and prints, as a JSON list, what their schemas object to.
// The schemas accept keys that they do not know. So each object notes which of its keys the schema looks at: a key that it does
// not look at is unknown, for example because it is misspelt.
import { readFileSync } from "node:fs";
import * as keda from "@kubernetes-models/keda/keda.sh/v1alpha1";
import * as monitoring from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const groups = { "keda.sh/v1alpha1": keda, "monitoring.coreos.com/v1": monitoring };

function watched(value, path, unread) {
  if (value === null || typeof value !== "object") return value;
  const places = Object.entries(value).map(([key, each]) => [key, each, `${path}.${key}`]);
  if (!Array.isArray(value)) places.forEach(([, , place]) => unread.add(place));
  const inside = places.map(([key, each, place]) => [key, watched(each, place, unread)]);
  const copy = Array.isArray(value) ? inside.map(([, each]) => each) : Object.fromEntries(inside);
  return new Proxy(copy, {
    get(target, key) {
      if (typeof key === "string") unread.delete(`${path}.${key}`);
      return target[key];
    },
  });
}

function objections(resource) {
  const Model = groups[resource.apiVersion]?.[resource.kind];
  if (Model === undefined) return [`there is no schema of ${resource.apiVersion} ${resource.kind}`];
  const unread = new Set();
  const found = [];
  try {
    Model.prototype.validate.call(watched(resource, resource.kind, unread));
  } catch (error) {
    found.push(`${resource.kind}: ${error.message}`);
  }
  return [...found, ...[...unread].map((place) => `${place} is unknown`)];
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf-8")).flatMap(objections)));
