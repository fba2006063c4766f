import type { Schemas } from "../api/client";
import { Field, Select } from "./field";

export type Sort = Schemas["Sort"];

const SORTS: readonly (readonly [Sort, string])[] = [
  ["-created", "newest first"],
  ["created", "oldest first"],
  ["name", "by name"],
  ["-name", "by name, backwards"],
];

interface Props {
  text: string;
  onText: (text: string) => void;
  sort: Sort;
  onSort: (sort: Sort) => void;
}

/** Search and order of a list. */
export function SearchFields({ text, onText, sort, onSort }: Props) {
  return (
    <>
      <Field label="Name" type="search" placeholder="part of a name" value={text} onValue={onText} />
      <Select label="Order" value={sort} onValue={(value) => onSort(value as Sort)} options={SORTS} />
    </>
  );
}
