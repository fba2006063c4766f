import type { ReactNode } from "react";

export interface Column<T> {
  head: string;
  cell: (row: T) => ReactNode;
  numeric?: boolean;
}

interface Props<T> {
  caption: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  rowKey: (row: T) => string | number;
  showCaption?: boolean;
}

/**
 * Table. On a narrow screen each row is a card with the heads as labels.
 *
 * The roles are explicit, since a row that is displayed as a card is no row for a screen reader.
 */
export function Table<T>({ caption, columns, rows, rowKey, showCaption = false }: Props<T>) {
  return (
    <table role="table">
      <caption className={showCaption ? undefined : "visually-hidden"}>{caption}</caption>
      <thead role="rowgroup">
        <tr role="row">
          {columns.map((column) => (
            <th key={column.head} role="columnheader" scope="col" className={column.numeric ? "numeric" : undefined}>
              {column.head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody role="rowgroup">
        {rows.map((row) => (
          <tr key={rowKey(row)} role="row">
            {columns.map((column) => (
              <td
                key={column.head}
                role="cell"
                data-head={column.head}
                className={column.numeric ? "numeric" : undefined}
              >
                {column.cell(row)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
