import { type DragEvent, useState } from "react";
import type { Reason } from "../../../api/error";
import { FileField } from "../../../components/file-field";
import { Notice } from "../../../components/notice";
import { Reasons } from "../../../components/reasons";
import { bytes } from "../../../lib/format";
import { type FoundFile, chosenFiles, droppedFiles } from "./folder";
import { type Selection, selectionOf } from "./selection";

interface Props {
  selection: Selection | null;
  onSelect: (selection: Selection | null) => void;
}

/** Place to drop a folder or an archive, or to choose one. */
export function DropZone({ selection, onSelect }: Props) {
  const [isOver, setOver] = useState(false);
  const [reasons, setReasons] = useState<readonly Reason[]>([]);

  function select(found: readonly FoundFile[]) {
    const result = selectionOf(found);
    setReasons(Array.isArray(result) ? result : []);
    onSelect(Array.isArray(result) ? null : result);
  }

  async function onDrop(event: DragEvent) {
    event.preventDefault();
    setOver(false);
    select(await droppedFiles(event.dataTransfer));
  }

  function onDragOver(event: DragEvent) {
    event.preventDefault();
    setOver(true);
  }

  return (
    <>
      <div
        className={isOver ? "drop over" : "drop"}
        onDrop={(event) => void onDrop(event)}
        onDragOver={onDragOver}
        onDragLeave={() => setOver(false)}
      >
        <p>
          <strong>Drop the folder that PEFT wrote</strong>, a <code>.zip</code> or a <code>.tar.gz</code> of it, or
          choose:
        </p>
        <div className="fields">
          <FileField label="Folder" folder multiple onFiles={(files) => select(chosenFiles(files))} />
          <FileField label="The two files, or an archive" multiple onFiles={(files) => select(chosenFiles(files))} />
        </div>
        <p className="quiet">{selection === null ? "Nothing is chosen." : <Chosen selection={selection} />}</p>
      </div>
      {reasons.length > 0 && (
        <Notice tone="error" title="This is no adapter">
          <Reasons reasons={reasons} />
        </Notice>
      )}
    </>
  );
}

function Chosen({ selection }: { selection: Selection }) {
  if (selection.kind === "archive") return `${selection.archive.name}, ${bytes(selection.archive.size)}`;
  const { config, weights, others } = selection;
  return `${config.name}, ${weights.name} (${bytes(weights.size)})${others.length > 0 ? `; not used: ${others.join(", ")}` : ""}`;
}
