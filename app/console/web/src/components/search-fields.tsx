import type { Schemas } from "../api/client";
import { Field, Select } from "./field";

export type Sort = Schemas["Sort"];

const SORTS: readonly (readonly [Sort, string])[] = [
  ["-created", "newest first"],
  ["created", "oldest first"],
  ["name", "by name"],
  ["-name", "by name, backwards"],
];

/** Texts of a search in keys. */
export const IN_KEYS = { label: "Search", hint: "id, name or owner" } as const;

interface Props {
  label?: string;
  /** Where the text is searched. */
  hint?: string;
  text: string;
  onText: (text: string) => void;
  sort: Sort;
  onSort: (sort: Sort) => void;
}

/** Search and order of a list. */
export function SearchFields({ label = "Name", hint = "part of a name", text, onText, sort, onSort }: Props) {
  return (
    <>
      <Field label={label} type="search" placeholder={hint} value={text} onValue={onText} />
      <Select label="Order" value={sort} onValue={(value) => onSort(value as Sort)} options={SORTS} />
    </>
  );
}
